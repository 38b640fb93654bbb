"""Embedding models by their own libraries, on tiny ones with random weights saved to disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from marin import MarinError
from marin.datakit.embedders import LastToken, SentenceModel

torch = pytest.importorskip("torch", reason="the extra `embed` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `embed` is not installed")

TEXTS = ["the cat sat on the mat", "", None, "a dog", "the cat sat on the mat and the dog sat too"]
MAX_TOKENS = 8


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of Harrier's class with 32 dimensions and its tokenizer."""
    folder = tmp_path_factory.mktemp("decoder")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([text for text in TEXTS if text], trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    transformers.Qwen3Model(config).save_pretrained(folder)
    return folder


def restored(embedder: Any, texts: list[str | None]) -> np.ndarray:
    values, scales = embedder.embed(pa.array(texts, pa.large_string()))
    vectors: np.ndarray = values * scales[:, None]
    return vectors


def one_by_one(folder: Path, text: str) -> np.ndarray:
    """The last token's hidden state of one text without padding, at unit length."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    ids = tokenizer(text)["input_ids"][:MAX_TOKENS]
    with torch.inference_mode():
        last = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].double().numpy()
    unit: np.ndarray = last / np.linalg.norm(last)
    return unit


@pytest.mark.parametrize("batch_tokens", [1, 17, 4096])
def test_batches_with_padding_give_each_text_its_own_vector(
    decoder: Path, batch_tokens: int
) -> None:
    found = restored(LastToken(str(decoder), MAX_TOKENS, batch_tokens), TEXTS)
    assert found.shape == (len(TEXTS), 32)
    for text, vector in zip(TEXTS, found, strict=True):
        if text:
            assert np.abs(vector - one_by_one(decoder, text)).max() < 0.01
        else:
            assert not vector.any()


def test_a_folder_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match="embedding model"):
        LastToken(str(tmp_path), MAX_TOKENS, 64)


def test_any_sentence_model_is_used_with_its_own_pooling(decoder: Path, tmp_path: Path) -> None:
    sentence = pytest.importorskip(
        "sentence_transformers", reason="the extra `embed` is not installed"
    )
    from sentence_transformers.models import Pooling, Transformer

    parts = Transformer(str(decoder), max_seq_length=MAX_TOKENS)
    pooling = Pooling(32, "mean")
    model = sentence.SentenceTransformer(modules=[parts, pooling])
    model.save(str(tmp_path / "model"))
    found = restored(SentenceModel(str(tmp_path / "model"), MAX_TOKENS, 64), TEXTS)
    expected = model.encode([text for text in TEXTS if text])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(found[[0, 3, 4]] - expected).max() < 0.01
    assert not found[2].any()
