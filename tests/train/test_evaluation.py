"""Evaluations on held-out documents: how they are laid into rows, and what they sum to."""

from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pytest
from support.training import tiny_model, write_held_out
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import Replace as Normalizer
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from marin.errors import MarinError
from marin.model import Batch, make_mesh
from marin.train.config import EvaluationConfig, MeshShape, TrainConfig
from marin.train.curriculum import Curriculum, Segment
from marin.train.evaluation import (
    Evaluator,
    HeldOut,
    Measured,
    compile_evaluation,
    evaluation_shape,
    evaluation_steps,
    held_out_rows,
    token_bytes,
)
from marin.train.state import take_apart


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_held_out(tmp_path)
    return tmp_path


def test_rows_keep_documents_apart_and_every_token_once(store: Path) -> None:
    rows = held_out_rows(store, 16, 10_000, None)
    assert rows is not None
    assert rows.names == ("c00", "c02")
    assert rows.domain.tolist() == [0, 0, 0, 1, 1]  # 48 and 31 tokens in rows of 16
    assert (rows.segment_ids > 0).sum() == 48 + 31
    assert rows.segment_ids[0].tolist() == [1] * 5 + [2] * 11
    assert rows.positions[0].tolist() == [*range(5), *range(11)]
    assert rows.segment_ids[2].tolist() == [1] * 13 + [2] * 3
    assert rows.positions[2].tolist() == [*range(13), *range(3)]
    same = (rows.segment_ids[:, 1:] == rows.segment_ids[:, :-1]) & (rows.segment_ids[:, 1:] > 0)
    np.testing.assert_array_equal(rows.loss_mask[:, :-1], same)
    assert not rows.loss_mask[:, -1].any()
    limited = held_out_rows(store, 16, 20, None)
    assert limited is not None
    assert (limited.segment_ids > 0).sum() == 5 + 30


def test_held_out_documents_are_read_as_far_as_the_limit_asks(store: Path) -> None:
    for cell in ("c00q0", "c00q1", "c02q1"):
        (store / cell).mkdir()
    short = held_out_rows(store, 16, 20, None)
    later = store / "validation" / "part-00001.arrow"
    later.write_bytes(b"not to be read")
    again = held_out_rows(store, 16, 20, None)
    assert short is not None
    assert again is not None
    np.testing.assert_array_equal(again.tokens, short.tokens)
    (store / "c01q0").mkdir()  # perhaps it is in the next file
    with pytest.raises(pa.ArrowInvalid):
        held_out_rows(store, 16, 20, None)


def test_domains_are_gathered_over_batches_and_files(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    (tmp_path / "validation").mkdir()
    documents: dict[str, list[list[int]]] = {"c00": [], "c01": [], "c02": []}
    for file in range(3):
        names = draw.choice(list(documents), 20, p=[0.6, 0.3, 0.1])
        tokens = [draw.integers(1, 99, draw.integers(0, 9)).tolist() for _ in names]
        for name, own in zip(names, tokens, strict=True):
            documents[name].append(own)
        cells = [f"{name}q{draw.integers(5)}" for name in names]
        table = pa.table({"cell": cells, "tokens": pa.array(tokens, pa.large_list(pa.uint32()))})
        path = str(tmp_path / "validation" / f"part-{file:05d}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    for name in documents:
        (tmp_path / f"{name}q0").mkdir()
    for limit in (1, 30, 10_000):
        rows = held_out_rows(tmp_path, 16, limit, None)
        assert rows is not None
        assert rows.names == tuple(documents)
        for index, name in enumerate(documents):
            lengths = np.cumsum([len(tokens) for tokens in documents[name]])
            kept = max(1, int((lengths <= limit).sum()))
            found = rows.tokens[rows.domain == index].ravel()
            assert found[found > 0].tolist() == list(chain(*documents[name][:kept]))


def test_bytes_of_tokens_add_up_to_the_text(tmp_path: Path) -> None:
    text = "Hello wörld, naïve ≠ x\n  indented"
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<bos>"])
    tokenizer.train_from_iterator([text] * 3, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    sizes = token_bytes(tmp_path / "tokenizer.json")
    assert len(sizes) == tokenizer.get_vocab_size()
    assert sizes[tokenizer.encode(text).ids].sum() == len(text.encode())
    assert sizes[tokenizer.token_to_id("<bos>")] == 0


def test_a_byte_that_the_vocabulary_falls_back_to_is_one_byte(tmp_path: Path) -> None:
    text = "naïve words ≠ x\n  indented"
    letters = sorted({*text.replace(" ", "▁"), "wo"} - set("≠\n"))
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab, [("w", "o")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = Normalizer(" ", "▁")
    tokenizer.decoder = Sequence([Replace("▁", " "), ByteFallback(), Fuse()])
    tokenizer.add_special_tokens(["<unk>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoded = tokenizer.encode(text)
    assert {"<0x0A>", "<0xE2>", "wo", "ï", "▁"} <= set(encoded.tokens)
    assert token_bytes(tmp_path / "tokenizer.json")[encoded.ids].sum() == len(text.encode())


def test_a_store_that_holds_out_nothing_has_no_evaluation(tmp_path: Path) -> None:
    assert held_out_rows(tmp_path, 16, 100, None) is None


def test_a_run_is_evaluated_evenly_and_at_its_end() -> None:
    plan = Curriculum.plan((Segment(50, 1, 8, "a"),), 16)
    assert sorted(evaluation_steps(plan, 4)) == [13, 25, 38, 50]
    assert sorted(evaluation_steps(plan, 100)) == list(range(1, 51))


def test_as_many_rows_are_evaluated_at_a_time_as_a_microbatch_has() -> None:
    plan = Curriculum.plan((Segment(10, 8, 512, "a"), Segment(10, 4, 1024, "a")), 16)
    config = TrainConfig(Path("shards"), Path("run"), tiny_model(), microbatches=4)
    assert evaluation_shape(config, plan) == (2, 512)
    longer = replace(config, evaluation=EvaluationConfig(seq_len=1024))
    assert evaluation_shape(longer, plan) == (1, 1024)
    other = replace(config, evaluation=EvaluationConfig(seq_len=256))
    with pytest.raises(MarinError, match=r"evaluation.seq_len = 256: .* \[512, 1024\]"):
        evaluation_shape(other, plan)


class Reading:
    """An evaluation that keeps its batches; row r of domain d has d + 1 nats a token."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def __call__(self, parameters: Any, bias: Any, batch: Batch, scale: Any) -> Measured:
        self.batches.append(batch)
        domain, row = np.asarray(batch.tokens)[:, :2].T
        predicted = row + 1
        assigned, dropped = np.full(3, 2**30, np.int32), np.full(3, 2**29, np.int32)
        nats = np.float32((domain + 1) * predicted)
        return Measured(nats, predicted, assigned, dropped)  # type: ignore[arg-type]


def read_by_domain(rows: int, of_each: int, devices: int) -> tuple[list[Batch], dict[str, float]]:
    """What an evaluation of three domains reads, `rows` at a time, and what it finds."""
    domain = np.repeat(np.arange(3), of_each)
    tokens = np.zeros((len(domain), 4), np.int32)
    tokens[:, 0], tokens[:, 1] = domain, np.arange(len(domain))
    ones = np.ones_like(tokens)
    held_out = HeldOut(("a", "b", "c"), domain, tokens, ones, ones, ones > 0, None)
    trainee = take_apart(tiny_model(), make_mesh(expert=devices))
    reading: Future[Any] = Future()
    reading.set_result(Reading())
    evaluator = Evaluator(held_out, trainee, rows, frozenset(), {"eval/": reading}, (0, 1))
    values = evaluator.measure(trainee.layout, 1.0)
    return reading.result().batches, values


@pytest.mark.parametrize("of_each", [100, 10])
def test_devices_read_rows_of_all_domains_and_no_empty_ones(of_each: int) -> None:
    batches, values = read_by_domain(64, of_each, devices=4)
    assert len(batches) == -(-3 * of_each // 64)
    for batch in batches:
        assert np.asarray(batch.segment_ids).all()
        for shard in batch.tokens.addressable_shards:
            assert set(np.asarray(shard.data)[:, 0].tolist()) == {0, 1, 2}
    seen = np.concatenate([np.asarray(batch.tokens)[:, 1] for batch in batches])
    assert set(seen.tolist()) == set(range(3 * of_each))
    row = np.arange(3 * of_each)
    expected = np.average(row // of_each + 1, weights=row + 1)  # every row counts once
    assert values["eval/loss_micro"] == pytest.approx(expected)
    assert [values[f"eval/loss/{name}"] for name in "abc"] == pytest.approx([1, 2, 3])


def test_drops_are_counted_past_32_bits() -> None:
    _, values = read_by_domain(64, 100, devices=1)
    assert values["eval/drop_fraction"] == 0.5
    trainee = take_apart(tiny_model(), make_mesh(devices=jax.devices()[:1]))
    compiled = compile_evaluation(trainee, 2, 16, None)
    assert compiled.out_info.assigned.shape == compiled.out_info.dropped.shape == (2,)


def test_a_batch_that_the_mesh_can_cut_is_evaluated(tmp_path: Path) -> None:
    ramp = (Segment(10, 2, 512, "a"), Segment(10, 8, 512, "a"), Segment(10, 4, 1024, "a"))
    plan = Curriculum.plan(ramp, 16)
    config = TrainConfig(Path("shards"), Path("run"), tiny_model(), MeshShape(expert=4))
    assert evaluation_shape(config, plan) == (8, 512)
    with pytest.raises(MarinError, match=r"evaluation: batches of 4 rows of 1024 .* into 8"):
        longer = EvaluationConfig(seq_len=1024)
        evaluation_shape(replace(config, evaluation=longer, microbatches=2), plan)
