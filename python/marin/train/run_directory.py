"""The directory of a run: `config.toml`, `plan.json`, `metrics.jsonl`, `checkpoints/`, `wandb/`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from marin.engine import check_output_root, make_folder, read_json, write_json
from marin.engine.files import PARTIAL_PREFIX
from marin.engine.lock import LOCK_NAME, held
from marin.errors import MarinError
from marin.train.checkpoint import complete_steps
from marin.train.config import TrainConfig
from marin.train.curriculum import Curriculum
from marin.train.edge import CONFIG_NAME, load_config, write_config
from marin.train.metrics import METRICS_NAME
from marin.train.source import Leg, Source, first_leg

PLAN_NAME = "plan.json"
T = TypeVar("T")

# What may change from one start of a run to the next. Most of it decides nothing that is computed;
# where and how it is computed changes rounding, and a transport which assignments are dropped.
_FREE = frozenset(
    {"log", "checkpoint", "watch", "evaluation", "stop_at", "profile", "run", "mesh"}
    | {"microbatches", "model.remat", "model.attention", "model.cross_entropy_block"}
    | {"model.transport", "model.waves", "model.drop_policy", "model.stripe"}
    | {"model.transport_capacity", "model.receiver_capacity"}
)


class RunDirectory:
    """Paths and small files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # Orbax refuses relative paths
        self.metrics = self.path / METRICS_NAME
        self.checkpoints = self.path / "checkpoints"
        self._plan = self.path / PLAN_NAME

    def locked(self) -> AbstractContextManager[None]:
        """Holds the run for this process; a killed process lets it go."""
        return held(self.path, "choose another run directory")

    def config(self, settings: Sequence[str] = ()) -> TrainConfig:
        """The configuration the run was started with, changed by `settings` (`key=value`)."""
        path = self.path / CONFIG_NAME
        if not path.is_file():
            raise MarinError(f"{self.path}: no {CONFIG_NAME}, so it is not a run's directory")
        return replace(load_config(path, settings), run=self.path)

    def open(self, config: TrainConfig, stack: ExitStack) -> None:
        """Makes the directory this configuration's and holds it until the end of `stack`.

        Raises:
          MarinError: it holds something else than a run of this configuration, lies in a stage
            directory or below a file, or another process trains there.
        """
        self._check()
        make_folder(self.path)
        stack.enter_context(self.locked())
        self.claim(config)

    def _check(self) -> None:
        check_output_root(self.path)
        if not self.path.is_dir() or ((self.path / CONFIG_NAME).is_file() and self._is_begun()):
            return
        # What a process leaves that was killed while it made the directory.
        rest = [path.name for path in self.path.iterdir() if path.name != LOCK_NAME]
        if not all(name.startswith(PARTIAL_PREFIX) for name in rest):
            raise MarinError(
                f"{self.path}: holds files but no run; choose a new or empty run directory"
            )

    def _is_begun(self) -> bool:
        return (self.path / LOCK_NAME).is_file() or self._plan.is_file()

    def claim(self, config: TrainConfig) -> None:
        """Makes the directory this configuration's; one that is already stays as it is."""
        path = self.path / CONFIG_NAME
        if path.is_file():
            changed = _first_difference(self.config().to_dict(), config.to_dict())
            if changed is not None:
                raise MarinError(
                    f"{self.path}: holds a run with another {changed}; choose another run directory"
                )
        else:
            write_config(config, self.path)

    def legs(self, config: TrainConfig) -> tuple[Leg, ...]:
        """Where the run reads from, by its plan or, before it has one, by its configuration."""
        if not self._plan.is_file():
            return (first_leg(config.shards),)
        return self._read("legs", lambda legs: tuple(map(Leg.from_json, legs)))

    def curriculum(self, config: TrainConfig, source: Source) -> Curriculum:
        """The curriculum of the run, made from the source if there is none yet."""
        if not self._plan.is_file():
            curriculum = Curriculum.plan(
                source.segments,
                config.model.hidden,
                rate_scale=config.rate_scale,
                qk_extension=config.qk_extension,
            )
            self.write_plan(curriculum, source)
        return self.planned_curriculum()

    def planned_curriculum(self) -> Curriculum:
        """The curriculum in `plan.json`."""
        return self._read("curriculum", Curriculum.from_json)

    def _read(self, key: str, reader: Callable[[Any], T]) -> T:
        try:
            return reader(self.plan()[key])
        except (KeyError, TypeError):
            raise MarinError(f"{self._plan}: no {key} of a run in it; restore the file") from None
        except MarinError as error:
            raise MarinError(f"{self._plan}: {key}: {error}") from None

    def plan(self) -> dict[str, Any]:
        """The content of `plan.json`."""
        return read_plan(self._plan)

    def tokenizer(self) -> str | None:
        """The content hash of what made the run's tokens; None before there is a plan."""
        return self.plan().get("tokenizer") if self._plan.is_file() else None

    def budget(self, curriculum: Curriculum) -> int:
        """Tokens of the first plan of the run; a branch has its own, which ends its cooldown."""
        if not self._plan.is_file():
            return curriculum.tokens
        budget: int = self.plan().get("budget", curriculum.rate_tokens)
        return budget

    def parent(self) -> dict[str, Any] | None:
        """Directory (`run`) and `step` that a branch began from; None for any other run."""
        return self.plan().get("parent") if self._plan.is_file() else None

    def checkpoint_steps(self) -> list[int]:
        """Steps of the complete checkpoints, without those that a change of the plan undid."""
        steps = complete_steps(self.checkpoints)
        last = self.plan().get("undone_after") if self._plan.is_file() else None
        return [step for step in steps if last is None or step <= last]

    def undone_are_gone(self) -> None:
        """Every checkpoint that is there counts again: those that were undone have been removed."""
        plan = self.plan()
        if plan.pop("undone_after", None) is not None:
            write_json(self._plan, plan)

    def write_plan(
        self,
        curriculum: Curriculum,
        source: Source,
        *,
        parent: Mapping[str, Any] | None = None,
        undone_after: int | None = None,
    ) -> None:
        """Replaces `plan.json`; the budget stays, and so does the parent of a branch.

        Checkpoints after step `undone_after` no longer count; the next start removes them.
        """
        parent = self.parent() or parent
        write_json(
            self._plan,
            {
                **({} if parent is None else {"parent": dict(parent)}),
                **({} if undone_after is None else {"undone_after": undone_after}),
                "budget": self.budget(curriculum),
                "curriculum": curriculum.to_json(),
                "legs": [leg.to_json() for leg in source.legs],
                "cells": list(source.cells),
                "schedule": dict(source.schedule),
                "tokenizer": source.tokenizer,
            },
        )


def read_plan(path: Path) -> dict[str, Any]:
    """The content of a run's `plan.json`.

    Raises:
      MarinError: it cannot be read or holds no plan.
    """
    plan = read_json(path, "the plan of a run")
    if not isinstance(plan, dict) or "curriculum" not in plan:
        raise MarinError(f"{path}: no curriculum in it; expected the plan of a run")
    return plan


def _first_difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str | None:
    """The dotted name of the first value that differs, apart from those that are free."""
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key), new.get(key)
        if one == other or f"{prefix}{key}" in _FREE:
            continue
        if not (isinstance(one, dict) and isinstance(other, dict)):
            return f"{prefix}{key} ({one!r}, here {other!r})"
        inner = _first_difference(one, other, f"{prefix}{key}.")
        if inner is not None:
            return inner
    return None
