from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marin import MarinError
from marin.datakit import DomainsConfig, EmbedConfig, domains, embed
from marin.datakit.parts import part_names, read_part
from marin.engine import read_manifest

Make = Callable[..., Path]


def _labels(directory: Path) -> list[int]:
    parts = part_names(read_manifest(directory))
    return [
        label for part in parts for label in read_part(directory / part, ["domain"])[0].to_pylist()
    ]


def test_topics_become_domains_named_by_their_terms(topics: Path, tmp_path: Path) -> None:
    embedding = embed(topics, tmp_path, EmbedConfig())
    directory = domains(topics, embedding, tmp_path, DomainsConfig(domains=3))
    labels = _labels(directory)
    assert len({(i % 3, label) for i, label in enumerate(labels)}) == 3
    summary = read_manifest(directory).summary["domains"]
    assert [d["documents"] for d in summary] == [100, 100, 100]
    terms = {term for d in summary for term in d["terms"][:5]}
    assert {"river", "gradient", "contract"} & terms
    assert all(len(d["examples"]) == 3 for d in summary)


def test_the_same_input_gives_the_same_bytes(topics: Path, tmp_path: Path) -> None:
    prints = set()
    for name in ("a", "b"):
        embedding = embed(topics, tmp_path / name, EmbedConfig(dimensions=64))
        directory = domains(topics, embedding, tmp_path / name, DomainsConfig(domains=5))
        prints.add(read_manifest(directory).fingerprint)
    assert len(prints) == 1


def test_every_domain_has_its_share_of_the_kept_documents(
    topics: Path, make_dedup: Make, tmp_path: Path
) -> None:
    removed = frozenset(f"doc-{i:05d}" for i in range(0, 300, 3) if i > 20)
    dedup = make_dedup(topics, removed)
    embedding = embed(topics, tmp_path, EmbedConfig(), dedup=dedup)
    config = DomainsConfig(domains=6, minimum_share=0.1)
    directory = domains(topics, embedding, tmp_path, config, dedup=dedup)
    kept = np.array([f"doc-{i:05d}" not in removed for i in range(300)])
    counts = np.bincount(np.array(_labels(directory))[kept])
    assert counts.min() >= 0.1 * kept.sum()
    assert counts.tolist() == [d["documents"] for d in read_manifest(directory).summary["domains"]]


@pytest.mark.parametrize("texts", [["one document"], ["", None, "..."], ["same"] * 50])
def test_corpora_that_cannot_be_divided_are_one_domain(
    make_documents: Make, tmp_path: Path, texts: list[str | None]
) -> None:
    documents = make_documents(texts)
    embedding = embed(documents, tmp_path, EmbedConfig())
    directory = domains(documents, embedding, tmp_path, DomainsConfig(domains=4))
    assert set(_labels(directory)) == {0}


def test_wrong_settings_name_the_key() -> None:
    with pytest.raises(MarinError, match="domains = 0"):
        DomainsConfig(domains=0)
    with pytest.raises(MarinError, match="minimum_share"):
        DomainsConfig(domains=50, minimum_share=0.05)
    with pytest.raises(MarinError, match="dimensions = 1"):
        EmbedConfig(dimensions=1)
