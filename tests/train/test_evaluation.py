"""Evaluations on held-out documents: how they are laid into rows, and what they sum to."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.training import tiny_model, write_held_out
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from marin.errors import MarinError
from marin.train.config import EvaluationConfig, MeshShape, TrainConfig
from marin.train.curriculum import Curriculum, Segment
from marin.train.evaluation import evaluation_shape, evaluation_steps, held_out_rows, token_bytes


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


def test_a_batch_that_the_mesh_can_cut_is_evaluated(tmp_path: Path) -> None:
    ramp = (Segment(10, 2, 512, "a"), Segment(10, 8, 512, "a"), Segment(10, 4, 1024, "a"))
    plan = Curriculum.plan(ramp, 16)
    config = TrainConfig(Path("shards"), Path("run"), tiny_model(), MeshShape(expert=4))
    assert evaluation_shape(config, plan) == (8, 512)
    with pytest.raises(MarinError, match=r"evaluation: batches of 4 rows of 1024 .* into 8"):
        longer = EvaluationConfig(seq_len=1024)
        evaluation_shape(replace(config, evaluation=longer, microbatches=2), plan)
