"""The whole of datakit as a graph of stages: plan it, run it, resume it.

Each source has stages of its own (ingest, tokens, embedding, scores, matches); joins bring them
together (corpus, contamination, dedup, domains, quality, store). A directory is named after its
parameters and the content of its inputs, so after a change only what depends on it is done again,
and a source that changed costs its own stages and the joins.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from marin.datakit.corpus import corpus, join_sidecars
from marin.datakit.decontaminate import decontaminate, find_matches
from marin.datakit.dedup import dedup
from marin.datakit.domains import domains
from marin.datakit.embed import embed
from marin.datakit.ingest import ingest, nothing_kept, require_documents
from marin.datakit.quality import quality, score_quality
from marin.datakit.settings import BuildSettings
from marin.datakit.sources import Source, check_apart
from marin.datakit.store import Sidecars, build_store
from marin.datakit.tokenize import tokenize
from marin.datakit.tokenizer import load_tokenizer, train_bpe
from marin.engine import (
    Engine,
    Progress,
    Silent,
    Unfinished,
    check_output_root,
    engine_for,
    planning,
)

State = Literal["finished", "to do", "waits"]
Done = Mapping[str, Path]

TOKENIZER = "tokenizer"

_log = logging.getLogger("marin.datakit")


@dataclass(frozen=True)
class Step:
    """One stage of the graph. `run` gets the directories of all steps before it by name."""

    name: str
    needs: tuple[str, ...]
    run: Callable[[Done], Path]


@dataclass(frozen=True)
class Planned:
    """What would happen to a step: it is `finished` (with its directory), has work `to do`, or
    `waits` for one that has."""

    name: str
    needs: tuple[str, ...]
    state: State
    directory: Path | None


def build(settings: BuildSettings, *, progress: Progress | None = None) -> dict[str, Path]:
    """Runs every step that is not finished; returns all directories by step, `store` among them.

    Raises:
      MarinError: a source or a setting is wrong.
    """
    found: dict[str, Path] = {}
    for step in steps(settings, progress or Silent()):
        if step.name == TOKENIZER:  # the first after those that ingest
            for line in _check_documents(settings, found):
                _log.warning("%s", line)
        found[step.name] = step.run(found)
    return found


def _check_documents(settings: BuildSettings, found: Done) -> list[str]:
    """The sources without a document, a line for each; raises where the build cannot do it."""
    directories = {source.name: found[f"ingest {source.name}"] for source in settings.sources}
    empty = require_documents(list(directories.values()))
    if settings.tokenizer.use is None and settings.tokenizer.train_on:
        require_documents([directories[name] for name in settings.tokenizer.train_on])
    for source in settings.evaluation:
        line = nothing_kept(found[f"ingest evaluation {source.name}"])
        empty += [] if line is None else [f"evaluation {line}"]
    return empty


def plan(settings: BuildSettings) -> list[Planned]:
    """The steps of a build in order, and what each would do now; nothing is written."""
    found: dict[str, Path] = {}
    planned = []
    with planning():
        for step in steps(settings, Silent()):
            state: State = "waits"
            if all(need in found for need in step.needs):
                try:
                    found[step.name] = step.run(found)
                    state = "finished"
                except Unfinished:
                    state = "to do"
            planned.append(Planned(step.name, step.needs, state, found.get(step.name)))
    return planned


def steps(settings: BuildSettings, progress: Progress) -> list[Step]:
    """The graph in an order in which every step stands after those it needs.

    Raises:
      MarinError: the output and a source lie in each other, or the output is no folder.
    """
    check_apart(settings.output, (*settings.sources, *settings.evaluation))
    check_output_root(settings.output)
    stages = _Stages(settings, engine_for(settings.engine), progress)
    kinds = ["tokens", "embedding", "scores"] + ["matches"] * bool(settings.evaluation)
    return [*_source_steps(stages), *_own_steps(stages, kinds), *_joins(stages, kinds)]


@dataclass(frozen=True)
class _Stages:
    """The stages with everything set but their inputs, which are directories by step name."""

    settings: BuildSettings
    engine: Engine
    progress: Progress

    @property
    def root(self) -> Path:
        return self.settings.output

    @property
    def sources(self) -> list[str]:
        return [source.name for source in self.settings.sources]

    @property
    def evaluation(self) -> list[str]:
        return [f"ingest evaluation {source.name}" for source in self.settings.evaluation]

    def ingest(self, source: Source) -> Path:
        return ingest(source, self.root, engine=self.engine, progress=self.progress)

    def tokenizer(self, done: Done) -> Path:
        chosen = self.settings.tokenizer
        if chosen.use is not None:
            return load_tokenizer(chosen.use, self.root, chosen.special)
        documents = [done[step] for step in self.tokenizer_needs()]
        return train_bpe(
            corpus(documents, self.root), self.root, chosen.bpe, progress=self.progress
        )

    def tokenizer_needs(self) -> list[str]:
        chosen = self.settings.tokenizer
        names = [] if chosen.use is not None else chosen.train_on or self.sources
        return [f"ingest {name}" for name in names]

    def own(self, kind: str, documents: Path, done: Done) -> Path:
        """A sidecar of one source."""
        settings, engine, progress = self.settings, self.engine, self.progress
        if kind == "tokens":
            return tokenize(
                documents, done["tokenizer"], self.root, engine=engine, progress=progress
            )
        if kind == "embedding":
            return embed(documents, self.root, settings.embed, engine=engine, progress=progress)
        if kind == "scores":
            return score_quality(documents, self.root, engine=engine, progress=progress)
        return find_matches(
            documents,
            [done[step] for step in self.evaluation],
            self.root,
            settings.decontaminate,
            engine=engine,
            progress=progress,
        )

    def contamination(self, done: Done) -> Path:
        return decontaminate(
            done["corpus"],
            done["matches"],
            [done[step] for step in self.evaluation],
            self.root,
            self.settings.decontaminate,
            progress=self.progress,
        )

    def dedup(self, done: Done) -> Path:
        return dedup(
            [done["corpus"]],
            self.root,
            self.settings.dedup,
            removed=done.get("contamination"),
            engine=self.engine,
            progress=self.progress,
        )

    def domains(self, done: Done) -> Path:
        return domains(
            done["corpus"],
            done["embedding"],
            self.root,
            self.settings.domains,
            dedup=done["dedup"],
            progress=self.progress,
        )

    def quality(self, done: Done) -> Path:
        return quality(
            done["scores"],
            self.root,
            self.settings.quality,
            dedup=done["dedup"],
            progress=self.progress,
        )

    def store(self, done: Done) -> Path:
        sidecars = Sidecars(done["tokens"], done["domains"], done["quality"], done["dedup"])
        return build_store(
            done["corpus"],
            sidecars,
            self.root,
            self.settings.store,
            engine=self.engine,
            progress=self.progress,
        )


def _source_steps(stages: _Stages) -> Iterator[Step]:
    for prefix, sources in (
        ("ingest", stages.settings.sources),
        ("ingest evaluation", stages.settings.evaluation),
    ):
        for source in sources:
            yield Step(f"{prefix} {source.name}", (), partial(_ignore_done, stages.ingest, source))
    yield Step(TOKENIZER, tuple(stages.tokenizer_needs()), stages.tokenizer)


def _ignore_done(run: Callable[[Source], Path], source: Source, _: Done) -> Path:
    return run(source)


def _own_steps(stages: _Stages, kinds: Sequence[str]) -> Iterator[Step]:
    more = {"tokens": ["tokenizer"], "matches": stages.evaluation}
    for kind in kinds:
        for name in stages.sources:
            ingested = f"ingest {name}"

            def run(done: Done, kind: str = kind, ingested: str = ingested) -> Path:
                return stages.own(kind, done[ingested], done)

            yield Step(f"{kind} {name}", (ingested, *more.get(kind, [])), run)


def _joins(stages: _Stages, kinds: Sequence[str]) -> Iterator[Step]:
    root = stages.root
    ingested = tuple(f"ingest {name}" for name in stages.sources)
    yield Step("corpus", ingested, lambda done: corpus([done[i] for i in ingested], root))
    for kind in kinds:
        own = tuple(f"{kind} {name}" for name in stages.sources)

        def join(done: Done, kind: str = kind, own: tuple[str, ...] = own) -> Path:
            return join_sidecars(kind, done["corpus"], [done[step] for step in own], root)

        yield Step(kind, ("corpus", *own), join)
    clean = ("contamination",) if stages.evaluation else ()
    if clean:
        yield Step(*clean, ("corpus", "matches", *stages.evaluation), stages.contamination)
    yield Step("dedup", ("corpus", *clean), stages.dedup)
    yield Step("domains", ("corpus", "embedding", "dedup"), stages.domains)
    yield Step("quality", ("scores", "dedup"), stages.quality)
    yield Step("store", ("corpus", "tokens", "domains", "quality", "dedup"), stages.store)
