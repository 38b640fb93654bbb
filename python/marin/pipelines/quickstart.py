"""The whole pipeline on one page: documents of this machine to a trained mixture of experts.

    documents ─► dedup ─► tokenize ─────────┐
        │          └────► embed ─► domains ─┼─► store ─► plan ─► shards ─► train ─► report
        └─► score ─► quality ───────────────┘

Every stage is the real algorithm at a small scale. A stage writes one directory below
`OUT/stages`, named by a hash of its parameters and inputs, so a second run reuses what is finished
and a killed one goes on. Training resumes from its last checkpoint to the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marin import datakit, mixture, packing, train
from marin.datakit.dedup import DedupConfig, dedup
from marin.engine import Progress, Silent, read_manifest
from marin.engine.manifest import fingerprint
from marin.errors import MarinError
from marin.model import HeroConfig
from marin.pipelines.workspace import workspace
from marin.report import Page, add_training, read_metrics
from marin.report.data import add_cells, add_duplicates, add_mixture

Announce = Callable[[str, Mapping[str, Any]], None]
"""Told the name and the summary of each data stage when it has ended."""

PHASE_SWITCH = (4, 5)
"""The second phase of the mixture starts at this fraction of the tokens."""

TILTS = (1.0, 2.0)
"""Weight of a cell per phase: its tokens times tilt ** quality. Phase 2 prefers better text."""

MINIMUM_TOKENS = 80_000
"""A shorter run would learn nothing that a plot shows."""

ROW_LENGTHS = ((0.0, 512), (0.5, 1024))
"""Tokens per row from these fractions of the run on."""

RATE_SCALE = 6.0
"""Times the compute-scaled rates, which are fitted to runs of 10^10 tokens and more."""

DEVICES = 4
"""Virtual CPU devices; the experts are spread over all of them."""


@dataclass(frozen=True)
class QuickstartConfig:
    """What can be changed from outside; the rest stands in the code below.

    `tokens` is the horizon of the training run; documents too few for it at half of `epoch_cap`
    give a shorter run.
    """

    tokens: int = 560_000
    max_bytes: int = 40 << 20
    vocab_size: int = 8192
    tokenizer: str | None = None
    seed: int = 0
    batch_rows: int = 4
    epoch_cap: float = 8.0


@dataclass(frozen=True)
class QuickstartResult:
    """Where the results are."""

    out: Path
    report: Path
    store: Path
    shards: Path
    training: train.RunResult


def run(
    paths: Sequence[Path],
    out: Path,
    config: QuickstartConfig = QuickstartConfig(),
    *,
    progress: Progress = Silent(),
    announce: Announce = lambda stage, summary: None,
) -> QuickstartResult:
    """Runs every stage; what an earlier run with the same options finished is reused.

    Args:
      paths: the user's files and folders; none: documents found on this machine.
      out: an empty or new directory, or one of an earlier quickstart.

    Raises:
      MarinError: nothing to learn from in `paths`, too few tokens, or an unusable `out`.
    """
    check_tokens(config)
    with workspace(out, paths):
        root = out / "stages"
        removed, store = _cells(paths, out, root, config, progress, announce)
        schedule = make_schedule(store, config)
        plan = packing.plan(store, schedule, root, progress=progress)
        shards = packing.pack(plan, root, progress=progress)
        announce("shards", read_manifest(shards).summary)
        training = _train(store, shards, out, config, progress)
        report = out / "report.html"
        _report(removed, store, training).write(report)
    return QuickstartResult(out, report, store, shards, training)


def _cells(
    paths: Sequence[Path],
    out: Path,
    root: Path,
    config: QuickstartConfig,
    progress: Progress,
    announce: Announce,
) -> tuple[Path, Path]:
    """Documents to cells; returns the sidecars of the deduplication, and the store."""
    local = datakit.LocalConfig(paths=tuple(paths), max_bytes=config.max_bytes)
    documents = datakit.local_documents(root, local, exclude=[out], progress=progress)
    announce("documents", read_manifest(documents).summary)
    removed = dedup([documents], root, DedupConfig(), progress=progress)
    announce("dedup", read_manifest(removed).summary)

    if config.tokenizer is None:
        bpe = datakit.BPEConfig(vocab_size=config.vocab_size)
        tokenizer = datakit.train_bpe(documents, root, bpe, dedup=removed, progress=progress)
    else:
        tokenizer = datakit.load_tokenizer(config.tokenizer, root)
    tokens = datakit.tokenize(documents, tokenizer, root, dedup=removed, progress=progress)

    embeddings = datakit.embed(
        documents, root, datakit.EmbedConfig(), dedup=removed, progress=progress
    )
    domains = datakit.domains(
        documents,
        embeddings,
        root,
        datakit.DomainsConfig(domains=8, fine=256),
        dedup=removed,
        progress=progress,
    )
    scores = datakit.score_quality(documents, root, progress=progress)
    quality = datakit.quality(
        scores, root, datakit.QualityConfig(), dedup=removed, progress=progress
    )

    sidecars = datakit.Sidecars(tokens=tokens, domains=domains, quality=quality, dedup=removed)
    carving = datakit.StoreConfig(seed=config.seed)
    store = datakit.build_store(documents, sidecars, root, carving, progress=progress)
    announce("store", read_manifest(store).summary)
    return removed, store


def check_tokens(config: QuickstartConfig) -> None:
    """Raises `MarinError` if the run that is asked for is too short."""
    if config.tokens < MINIMUM_TOKENS:
        raise MarinError(
            f"--tokens {config.tokens:,}: expected at least {MINIMUM_TOKENS:,}; a shorter run "
            "learns nothing that a plot shows"
        )


def make_schedule(store: Path, config: QuickstartConfig) -> mixture.Schedule:
    """Two phases over the store's cells; rows of 512 and, from half of the run, of 1,024 tokens.

    Raises:
      MarinError: `MINIMUM_TOKENS` are more than was asked for or than the store gives.
    """
    check_tokens(config)
    manifest = read_manifest(store)
    available = {name: cell["tokens"] for name, cell in manifest.summary["cells"].items()}
    repeats = config.epoch_cap / 2  # the second phase reads good cells more than their share
    horizon = min(config.tokens, int(sum(available.values()) * repeats))
    if horizon < MINIMUM_TOKENS:
        raise MarinError(
            f"{sum(available.values()):,} tokens in {manifest.rows:,} documents: too few for a run "
            f"of {MINIMUM_TOKENS:,} tokens that reads each at most {repeats:g} times; give more "
            "documents"
        )
    switch = horizon * PHASE_SWITCH[0] // PHASE_SWITCH[1]
    specification = mixture.tilted(
        "quickstart",
        available,
        [("main", switch, TILTS[0]), ("anneal", horizon - switch, TILTS[1])],
        epoch_cap=config.epoch_cap,
        store=manifest.fingerprint,
    )
    stages = [mixture.Stage(start, length, config.batch_rows) for start, length in ROW_LENGTHS]
    return mixture.Schedule.of(specification, stages, seed=config.seed, exhaustion="repeat")


def make_model(vocab: int) -> HeroConfig:
    """A hero with each of its parts once: a local layer and a global one, 16 experts."""
    return HeroConfig(
        hidden=128,
        layers=2,
        heads=2,
        head_dim=64,
        kv_local=2,
        kv_global=1,
        latent=64,
        expert_width=64,
        experts=16,
        top_k=2,
        shared_experts=1,
        vocab=vocab,
        window=128,
        global_every=2,
        gate_rank=16,
        transport="pooled_wave",
        cross_entropy_block=1024,
        remat="none",
    )


def _train(
    store: Path, shards: Path, out: Path, config: QuickstartConfig, progress: Progress
) -> train.RunResult:
    model = make_model(read_manifest(store).summary["tokenizer"]["vocab_size"])
    identity = [read_manifest(shards).fingerprint, asdict(model), config.seed]
    return train.run(
        train.TrainConfig(
            shards=shards,
            run=out / f"run-{fingerprint(identity)[:12]}",
            model=model,
            mesh=train.MeshShape(expert=DEVICES),
            seed=config.seed,
            rate_scale=RATE_SCALE,
            checkpoint=train.CheckpointConfig(every=25),
            evaluation=train.EvaluationConfig(times=0),
        ),
        progress=progress,
    )


def _report(removed: Path, store: Path, training: train.RunResult) -> Page:
    metrics = read_metrics(training.run)
    sizes = read_manifest(store).summary["cells"]
    page = Page("Marin quickstart", "Documents to a trained mixture of experts.")
    add_training(page, metrics, unigram_loss=training.unigram_loss)
    add_mixture(page, metrics, {cell: sizes[cell]["tokens"] for cell in sizes})
    add_duplicates(page, read_manifest(removed).summary)
    add_cells(page, read_manifest(store).summary)
    return page
