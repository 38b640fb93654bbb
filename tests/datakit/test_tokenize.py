import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from marin import MarinError
from marin.datakit import BPEConfig, SpecialTokens, load_tokenizer, tokenize, train_bpe
from marin.datakit.encode import PIECE_CHARACTERS, Encoder, may_cut, pieces_of
from marin.datakit.parts import read_part
from marin.datakit.tokenizer import BOS, EOS, open_tokenizer
from marin.engine import read_manifest

Make = Callable[..., Path]


def _tokens(directory: Path, part: str = "part-00000.parquet") -> list[list[int] | None]:
    return read_part(directory / part, ["tokens"])["tokens"].to_pylist()


@pytest.fixture
def trained(topics: Path, tmp_path: Path) -> Path:
    return train_bpe(topics, tmp_path, BPEConfig(vocab_size=400))


def test_training_is_deterministic_and_reversible(
    topics: Path, trained: Path, tmp_path: Path
) -> None:
    again = train_bpe(topics, tmp_path / "again", BPEConfig(vocab_size=400))
    assert read_manifest(trained).fingerprint == read_manifest(again).fingerprint
    summary = read_manifest(trained).summary
    assert summary == read_manifest(again).summary
    assert (summary["vocab_size"], summary["bos"], summary["eos"]) == (400, 0, 1)
    tokenizer = open_tokenizer(trained)
    text = "Ünïcode 你好\n\n\tx = 12345  # \0 \U0001f600 <|pad|>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_document_has_one_bos_and_one_eos(
    make_documents: Make, make_dedup: Make, trained: Path, tmp_path: Path
) -> None:
    texts = ["cat", "dog", "cat", "", None, "你好世界", f"{BOS}{EOS} twice {EOS}", "\0"]
    documents = make_documents(texts)
    dedup = make_dedup(documents, frozenset({"doc-00002", "doc-00004"}))
    rows = _tokens(tokenize(documents, trained, tmp_path, dedup=dedup))
    assert rows[2] is None
    assert rows[4] is None
    for row in (row for row in rows if row is not None):
        assert row[0] == 0
        assert row[-1] == 1
        assert row.count(0) == row.count(1) == 1
    assert rows[3] == [0, 1]


def _word_level(path: Path, post: bool) -> Path:
    vocabulary = {"<s>": 0, "</s>": 1, "[UNK]": 2, "cat": 3, "dog": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if post:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding()
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("post", [True, False])
def test_tokenizers_that_add_special_tokens_and_those_that_do_not_give_the_same(
    make_documents: Make, tmp_path: Path, post: bool
) -> None:
    source = _word_level(tmp_path / "tokenizer.json", post)
    directory = load_tokenizer(str(source), tmp_path)
    documents = make_documents(["cat dog dog cat", "", "dog"])
    assert _tokens(tokenize(documents, directory, tmp_path)) == [
        [0, 3, 4, 4, 3, 1],
        [0, 1],
        [0, 4, 1],
    ]
    bare = load_tokenizer(str(source), tmp_path, SpecialTokens(bos=None, eos=None))
    assert _tokens(tokenize(documents, bare, tmp_path)) == [[3, 4, 4, 3], [], [4]]
    assert read_manifest(bare).summary["hash"] != read_manifest(directory).summary["hash"]


def test_the_configuration_beside_a_tokenizer_names_its_special_tokens(tmp_path: Path) -> None:
    _word_level(tmp_path / "tokenizer.json", False)
    config = {"bos_token": {"content": "cat"}, "eos_token": "dog"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    summary = read_manifest(load_tokenizer(str(tmp_path), tmp_path)).summary
    assert (summary["bos"], summary["eos"]) == (3, 4)


def test_a_tokenizer_that_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for source, match in (
        (str(tmp_path), "not a tokenizer"),
        ("no/such", "neither a file"),
        ("./missing.json", "no such file"),
    ):
        with pytest.raises(MarinError, match=match) as error:
            load_tokenizer(source, tmp_path / "out")
        assert "\n" not in str(error.value)
    good = _word_level(tmp_path / "good.json", False)
    with pytest.raises(MarinError, match="'<x>' is not in its vocabulary"):
        load_tokenizer(str(good), tmp_path / "out", SpecialTokens(bos="<x>"))


def test_long_documents_in_pieces_give_the_tokens_of_the_whole(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = open_tokenizer(trained)
    assert may_cut(tokenizer)

    @settings(deadline=None, max_examples=60)
    @given(st.text(alphabet="ab 1'.\n\té你_", max_size=120))
    def check(text: str) -> None:
        text = "the river " + text + " and the trees"
        pieces = pieces_of(text)
        assert "".join(pieces) == text
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        if all(piece[0] in " \n" for piece in pieces[1:]):
            got = [t for p in pieces for t in tokenizer.encode(p, add_special_tokens=False).ids]
            assert got == whole

    monkeypatch.setattr("marin.datakit.encode.PIECE_CHARACTERS", 10)
    check()


SENTENCEPIECE = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
GPT2, PREFIXED = (pre_tokenizers.ByteLevel(add_prefix_space=prefix) for prefix in (False, True))
METASPACE = {
    scheme: pre_tokenizers.Metaspace(prepend_scheme=scheme) for scheme in ("always", "first")
}


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "cuts"),
    [
        (None, GPT2, True),
        (normalizers.NFC(), GPT2, True),
        (None, PREFIXED, False),
        (None, METASPACE["always"], False),
        (None, METASPACE["first"], False),
        (SENTENCEPIECE, None, False),
        (SENTENCEPIECE, GPT2, False),
        (normalizers.Strip(), GPT2, False),
        (None, pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated"), False),
    ],
)
def test_a_document_of_any_length_has_the_tokens_that_the_library_gives_it(
    normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
    cuts: bool,
) -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    lines = [f"the mill of river {i} and\nthe bank" for i in range(40)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["?"], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    assert may_cut(tokenizer) == cuts
    text = " ".join(lines * (2 * PIECE_CHARACTERS // 900))
    assert len(text) > 2 * PIECE_CHARACTERS
    (row,) = Encoder(tokenizer, None, None).encode(pa.array([text])).to_pylist()
    assert row == tokenizer.encode(text, add_special_tokens=False).ids


def test_batches_do_not_change_tokens(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.array(["river mill", None, "x " * 50, "", "end"], pa.large_string())
    whole = Encoder(open_tokenizer(trained), 0, None).encode(texts)
    monkeypatch.setattr("marin.datakit.encode.BATCH_CHARACTERS", 20)
    assert Encoder(open_tokenizer(trained), 0, None).encode(texts).equals(whole)
    assert whole.null_count == 1
    empty = Encoder(open_tokenizer(trained), 0, 1).encode(pa.array([], pa.large_string()))
    assert len(empty) == 0
