"""Shortened, branched and remixed runs on real plans; nothing is trained, so they are quick."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from support.packing import write_store
from support.training import tiny_model

from marin.engine import write_manifest
from marin.engine.lock import LOCK_NAME
from marin.errors import MarinError
from marin.mixture import Schedule, Specification, constant_batches, tilted
from marin.packing import PlanConfig, ShardConfig, pack, packed_as, plan
from marin.train.checkpoint import Checkpoints
from marin.train.config import MeshShape, TrainConfig
from marin.train.curriculum import Curriculum
from marin.train.metrics import MetricsLog
from marin.train.operations import branch, remix, shorten
from marin.train.run import resume
from marin.train.run import run as start
from marin.train.run_directory import RunDirectory
from marin.train.source import Source, check_vocab, open_source
from marin.train.telemetry import cursor_of
from marin.train.wandb_mirror import mirror_settings

TOKENS = 1_024  # per batch
STEPS = 40


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained_run(tmp_path, PlanConfig(), ShardConfig())


def trained_run(tmp_path: Path, rows: PlanConfig, files: ShardConfig) -> Path:
    """A run of 40 steps with checkpoints of steps 10 and 20, as if it had been trained so far."""
    draw = np.random.default_rng(0)
    lengths = {f"c0{d}q{q}": draw.integers(20, 400, 60).tolist() for d in (0, 1) for q in (0, 1)}
    store = write_store(tmp_path, lengths)
    specification = tilted(
        "test",
        {cell: sum(counts) for cell, counts in lengths.items()},
        [("main", 800, 1.0), ("anneal", 200, 3.0)],
        epoch_cap=8.0,
    )
    stages = constant_batches(TOKENS, [(0.0, 64), (0.5, 128)])
    schedule = Schedule.of(specification, stages, horizon=STEPS * TOKENS, seed=0)
    shards = pack(plan(store, schedule, tmp_path, rows), tmp_path, files)
    path = tmp_path / "run"
    path.mkdir()
    directory = RunDirectory(path)
    config = TrainConfig(shards=shards, run=path, model=tiny_model(), mesh=MeshShape(expert=4))
    directory.claim(config)
    source, curriculum = opened(path)
    log = MetricsLog(directory.metrics)
    checkpoints = Checkpoints(directory.checkpoints, keep=5)
    for step in range(20):
        log.write({"step": step})
        if step + 1 in (10, 20):
            state = {
                "cursor": cursor_of(curriculum, source, step + 1),
                "metrics_bytes": log.sync(),
            }
            checkpoints.save(step + 1, {"step": jax.numpy.int32(step + 1)}, state)
    checkpoints.close()
    log.close()
    return path


def opened(path: Path) -> tuple[Source, Curriculum]:
    directory = RunDirectory(path)
    config = directory.config()
    source = open_source(directory.legs(config))
    return source, directory.curriculum(config, source)


def quotas(source: Source, curriculum: Curriculum) -> dict[str, int]:
    """Rows per cell as they are read."""
    counts = np.zeros(len(source.cells), np.int64)
    for step in range(curriculum.steps):
        counts += np.bincount(source.read(step).cells, minlength=len(source.cells))
    return dict(zip(source.cells, counts.tolist(), strict=True))


def planned_quotas(source: Source) -> dict[str, int]:
    schedule = Schedule.from_json(source.schedule)
    counts = schedule.order.counts(schedule.rows)
    return dict(zip(schedule.cells, counts.tolist(), strict=True))


def assert_read_as_planned(path: Path, old: Source, step: int) -> None:
    """Row ids are consecutive, cells meet the plan's quotas, nothing before `step` has changed."""
    source, curriculum = opened(path)
    batches = [source.read(step) for step in range(curriculum.steps)]
    rows = Schedule.from_json(source.schedule).rows
    assert [row for batch in batches for row in batch.row_ids.tolist()] == list(range(rows))
    assert quotas(source, curriculum) == planned_quotas(source)
    for before in range(step):
        np.testing.assert_array_equal(batches[before].tokens, old.read(before).tokens)


def go_back(path: Path, *, to: int) -> None:
    """What `resume --at` does before it trains."""
    checkpoints = Checkpoints(RunDirectory(path).checkpoints, keep=5)
    checkpoints.sweep(after=to)
    checkpoints.close()


def only(source: Source, cell: str) -> Specification:
    """The mixture of a run with one cell alone."""
    specification = Schedule.from_json(source.schedule).revisions[-1].specification
    phases = tuple(
        replace(phase, weights={name: float(name == cell) for name in phase.weights})
        for phase in specification.phases
    )
    return replace(specification, phases=phases, epoch_cap=100.0)


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != LOCK_NAME
    }


def test_a_shortened_run_ends_on_the_floor_and_meets_its_new_quotas(run: Path) -> None:
    old_source, old = opened(run)
    changed = shorten(run, to=32 * TOKENS)
    source, new = opened(run)
    assert (changed.step, changed.steps, new.steps) == (20, 32, 32)
    for step in range(20):
        assert new.at(step).rates.muonh == pytest.approx(old.at(step).rates.muonh, rel=1e-12)
        assert new.at(step).first_row == old.at(step).first_row
        np.testing.assert_array_equal(source.read(step).tokens, old_source.read(step).tokens)
    rates = [new.at(step).rates.muonh for step in range(20, 32)]
    peak = old.at(0).rates.muonh / old.rate_fraction(TOKENS)
    assert rates[-1] == pytest.approx(0.05 * peak)
    decrements = -np.diff([old.at(19).rates.muonh, *rates])
    np.testing.assert_allclose(decrements, decrements[0], rtol=1e-9)
    assert [new.at(s).segment.phase for s in (24, 26)] == ["main", "anneal"]
    assert quotas(source, new) == planned_quotas(source)


def test_a_changed_run_is_packed_as_it_was(tmp_path: Path) -> None:
    settings = (PlanConfig("concat", max_segments=3), ShardConfig(4_096, 1_024, documents=True))
    run = trained_run(tmp_path, *settings)
    shorten(run, to=32 * TOKENS)
    child = branch(run, at=10, cooldown=6).run
    for path in (run, child):
        source, _ = opened(path)
        assert len(source.legs) == 2
        assert [packed_as(leg.shards) for leg in source.legs] == [settings] * 2


def test_more_than_a_quarter_is_cut_only_by_force(run: Path) -> None:
    with pytest.raises(MarinError, match="less than 75 %"):
        shorten(run, to=25 * TOKENS)
    assert shorten(run, to=25 * TOKENS, force=True).steps == 25
    with pytest.raises(MarinError, match="expected between 20480"):
        shorten(run, to=20 * TOKENS)


def test_shortening_twice_cuts_no_more_than_a_quarter_of_the_first_plan(run: Path) -> None:
    shorten(run, to=31 * TOKENS)
    with pytest.raises(MarinError, match=f"75 % of the {STEPS * TOKENS} that the run was first"):
        shorten(run, to=24 * TOKENS)
    assert shorten(run, to=24 * TOKENS, force=True).steps == 24


def test_a_branch_is_measured_by_its_own_end(run: Path) -> None:
    changed = branch(run, at=10, cooldown=10)
    with pytest.raises(MarinError, match=f"75 % of the {20 * TOKENS} that the run was first"):
        shorten(changed.run, to=14 * TOKENS)
    assert shorten(changed.run, to=16 * TOKENS).steps == 16
    with pytest.raises(MarinError, match=f"75 % of the {20 * TOKENS} that the run was first"):
        shorten(changed.run, to=13 * TOKENS)


def test_a_branch_leaves_its_parent_untouched_and_decays_to_the_floor(run: Path) -> None:
    before = files(run)
    changed = branch(run, at=10, cooldown=6, seq_len=256)
    assert files(run) == before
    source, curriculum = opened(changed.run)
    assert changed.run == run.with_name("run-branch-10")
    assert curriculum.steps == 16
    assert curriculum.at(9).segment.seq_len == 64
    assert curriculum.at(10).segment.seq_len == 256
    assert curriculum.at(10).qk_scale == pytest.approx(1 + 0.1 * np.log(4))
    _, parent = opened(run)
    peak = parent.at(0).rates.muonh / parent.rate_fraction(TOKENS)
    assert curriculum.at(15).rates.muonh == pytest.approx(0.05 * peak)
    assert quotas(source, curriculum) == planned_quotas(source)
    history = (changed.run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in history] == list(range(10))
    with pytest.raises(MarinError, match="exists; choose another directory"):
        branch(run, at=10, cooldown=6)
    with pytest.raises(
        MarinError, match=r"no complete checkpoint of step 11; there are \[10, 20\]"
    ):
        branch(run, at=11, cooldown=6)


def test_a_branch_says_which_run_it_began_from_and_where(run: Path) -> None:
    child = RunDirectory(branch(run, at=10, cooldown=10).run)
    told = mirror_settings(RunDirectory(run).config(), RunDirectory(run), 20, 0)
    assert RunDirectory(run).parent() is None
    assert "parent" not in told["config"]
    shorten(child.path, to=16 * TOKENS)
    assert child.parent() == {"run": str(run), "step": 10}
    lineage = mirror_settings(child.config(), child, 10, 0)["config"]["parent"]
    assert lineage == {"run": run.name, "id": told["id"], "step": 10}


def test_another_mixture_holds_from_the_newest_checkpoint_on(run: Path) -> None:
    old_source, old = opened(run)
    remix(run, specification=only(old_source, "c00q0"))
    source, new = opened(run)
    assert [new.at(s).rates for s in range(STEPS)] == [old.at(s).rates for s in range(STEPS)]
    for step in range(20):
        np.testing.assert_array_equal(source.read(step).cells, old_source.read(step).cells)
    later = np.concatenate([source.read(step).cells for step in range(20, new.steps)])
    assert {source.cells[cell] for cell in later} == {"c00q0"}


def test_the_last_of_two_changes_at_one_checkpoint_holds(run: Path) -> None:
    old, _ = opened(run)
    shorten(run, to=36 * TOKENS)
    assert shorten(run, to=32 * TOKENS).steps == 32
    assert_read_as_planned(run, old, 20)
    remix(run, specification=only(old, "c01q0"))
    source, curriculum = opened(run)
    assert [leg.step for leg in source.legs] == [0, 20]
    assert curriculum.steps == 32
    assert_read_as_planned(run, old, 20)
    assert {source.cells[c] for c in source.read(20).cells} == {"c01q0"}


@pytest.mark.parametrize("at", [10, 20])
def test_a_branch_at_or_before_a_change_goes_on_from_what_held_there(run: Path, at: int) -> None:
    old, _ = opened(run)
    mixture = only(old, "c00q0")
    remix(run, specification=mixture)
    changed = branch(run, at=at, cooldown=6)
    assert changed.steps == at + 6
    assert_read_as_planned(changed.run, old, at)
    source, _ = opened(changed.run)
    assert [leg.step for leg in source.legs] == [0, at]
    own = Schedule.from_json(source.schedule).revisions[-1].specification
    assert (own == mixture) == (at == 20)


def test_a_run_that_went_back_before_its_change_can_be_changed_there(run: Path) -> None:
    old, _ = opened(run)
    shorten(run, to=36 * TOKENS)
    go_back(run, to=10)
    assert_read_as_planned(run, old, 20)  # the change still lies ahead
    changed = shorten(run, to=32 * TOKENS)
    assert (changed.step, changed.steps) == (10, 32)
    source, _ = opened(run)
    assert [leg.step for leg in source.legs] == [0, 10]
    assert_read_as_planned(run, old, 10)


@pytest.mark.parametrize("change", ["shorten", "remix"])
def test_a_change_may_begin_at_an_older_checkpoint_and_undoes_what_came_after(
    run: Path, change: str
) -> None:
    old, _ = opened(run)
    before = files(run)
    if change == "shorten":
        changed = shorten(run, to=32 * TOKENS, at=10)
    else:
        changed = remix(run, specification=only(old, "c00q0"), at=10)
    assert changed.step == 10
    assert files(run) == before | {"plan.json": (run / "plan.json").read_bytes()}
    assert_read_as_planned(run, old, 10)
    with pytest.raises(MarinError, match=r"no complete checkpoint of step 20; there are \[10\]"):
        branch(run, at=20, cooldown=6)
    with pytest.raises(MarinError, match=r"no complete checkpoint of step 20; there are \[10\]"):
        resume(run, at=20)
    assert shorten(run, to=31 * TOKENS).step == 10  # the newest that counts
    go_back(run, to=10)  # killed before the plan says that they are gone
    assert RunDirectory(run).checkpoint_steps() == [10]
    assert_read_as_planned(run, old, 10)


def test_a_change_at_a_damaged_checkpoint_gives_nothing_up(run: Path) -> None:
    state = run / "checkpoints" / "step-00000010" / "state.json"
    state.write_bytes(state.read_bytes().replace(b"10", b"11", 1))
    before = files(run)
    with pytest.raises(MarinError, match=r"state\.json.*is damaged"):
        shorten(run, to=32 * TOKENS, at=10)
    with pytest.raises(MarinError, match=r"no complete checkpoint of step 15; there are"):
        shorten(run, to=32 * TOKENS, at=15)
    assert files(run) == before


def test_a_run_without_a_checkpoint_is_changed_from_its_first_step_on(run: Path) -> None:
    old, _ = opened(run)
    go_back(run, to=0)
    for to in (36, 32):
        assert shorten(run, to=to * TOKENS).steps == to
        assert_read_as_planned(run, old, 0)
    changed = remix(run, specification=only(old, "c01q1"))
    source, _ = opened(run)
    assert (changed.step, changed.steps) == (0, 32)
    assert [leg.step for leg in source.legs] == [0]
    assert set(source.read(0).cells.tolist()) == {source.cells.index("c01q1")}


def test_wandb_is_told_that_steps_may_come_out_otherwise(run: Path) -> None:
    directory = RunDirectory(run)

    def history(*settings: str) -> str:
        told: str = mirror_settings(directory.config(settings), directory, 20, 0)["history"]
        return told

    before = history()
    assert history("log.detail_every=3", "stop_at=30", "checkpoint.every=2") == before
    assert history("mesh.expert=2") != before
    shorten(run, to=32 * TOKENS)
    assert history() != before


def test_a_damaged_newest_checkpoint_is_refused_and_the_one_before_offered(run: Path) -> None:
    state = run / "checkpoints" / "step-00000020" / "state.json"
    state.write_bytes(state.read_bytes().replace(b"20", b"21", 1))
    with pytest.raises(MarinError, match=r"state\.json.*go on from the one before with --at 10"):
        resume(run)
    with pytest.raises(
        MarinError, match=r"no complete checkpoint of step 15; there are \[10, 20\]"
    ):
        resume(run, at=15)


def test_targets_are_what_the_rows_of_the_plan_follow(run: Path) -> None:
    source, curriculum = opened(run)
    counts = np.zeros(len(source.cells))
    for step in range(curriculum.steps):
        plan = curriculum.at(step)
        cells = source.read(step).cells
        counts += np.bincount(cells, minlength=len(source.cells)) * plan.segment.seq_len
        targets = source.targets(plan.first_row + plan.segment.batch_size)
        assert targets.sum() == pytest.approx(plan.tokens_after)
        # A cell is at most a row away in each of the two stages of row length.
        assert np.abs(counts - targets).max() <= 64 + 128


def test_a_run_without_its_metrics_is_one_line(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.unlink()
    with pytest.raises(MarinError, match=r"metrics\.jsonl: missing, but the checkpoint was saved"):
        resume(run)
    assert not path.exists()


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused_before_anything(run: Path) -> None:
    config = replace(RunDirectory(run).config(), run=run.with_name("fresh"))
    says = r"model.vocab = 64: .* made with a tokenizer of 50000 tokens"
    with pytest.raises(MarinError, match=says):
        start(config)
    assert not config.run.exists()
    summary = {"store": str(run.with_name("store"))}  # as shards said before they knew the size
    old = run.with_name("old")
    old.mkdir()
    write_manifest(old, "shards", parameters={}, inputs={}, rows={}, summary=summary)
    with pytest.raises(MarinError, match=says):
        check_vocab(old, 64)
    check_vocab(old, 50_000)


def test_a_complete_run_cannot_be_shortened_or_remixed(run: Path) -> None:
    source, curriculum = opened(run)
    checkpoints = Checkpoints(RunDirectory(run).checkpoints, keep=5)
    cursor = cursor_of(curriculum, source, STEPS)
    checkpoints.save(STEPS, {"step": jax.numpy.int32(STEPS)}, {"cursor": cursor})
    checkpoints.close()
    plan = (run / "plan.json").read_bytes()
    with pytest.raises(MarinError, match=f"complete after {STEPS} steps and {curriculum.tokens}"):
        shorten(run, to=curriculum.tokens - TOKENS)
    with pytest.raises(MarinError, match="complete after"):
        remix(run, specification=Schedule.from_json(source.schedule).revisions[-1].specification)
    assert (run / "plan.json").read_bytes() == plan


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_damaged_shards_are_named_before_anything_compiles(
    run: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["marin.train.run"], "compile_ahead", None)
    path = RunDirectory(run).config().shards / "part-00000.arrow"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[:-1])
    else:
        content[: len(content) // 2] = bytes(len(content) // 2)
        path.write_bytes(content)
    with pytest.raises(MarinError, match=r"part-00000\.arrow.*; run marin pack --verify"):
        resume(run, at=10)
