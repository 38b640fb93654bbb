from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from marin import MarinError
from marin.datakit import (
    BPEConfig,
    DomainsConfig,
    EmbedConfig,
    QualityConfig,
    Sidecars,
    StoreConfig,
    build_store,
    domains,
    embed,
    quality,
    score_quality,
    tokenize,
    train_bpe,
)
from marin.datakit.dedup import DedupConfig, dedup
from marin.datakit.parts import part_names, read_part, write_table
from marin.engine import read_manifest
from marin.packing.store import Store

Make = Callable[..., Path]
Row = dict[str, object]


def _sidecars(documents: Path, root: Path, dedup: Path | None = None) -> Sidecars:
    tokenizer = train_bpe(documents, root, BPEConfig(vocab_size=300))
    embedding = embed(documents, root, EmbedConfig(dimensions=32), dedup=dedup)
    return Sidecars(
        tokens=tokenize(documents, tokenizer, root, dedup=dedup),
        domains=domains(documents, embedding, root, DomainsConfig(domains=3), dedup=dedup),
        quality=quality(score_quality(documents, root), root, QualityConfig(), dedup=dedup),
        dedup=dedup,
    )


def _cells(store: Path) -> dict[str, list[Row]]:
    cells: dict[str, list[Row]] = {}
    for entry in read_manifest(store).files:
        with pa.memory_map(str(store / entry.name)) as source:
            rows = pa.ipc.open_file(source).read_all().to_pylist()
        cells.setdefault(entry.name.partition("/")[0], []).extend(rows)
    return cells


def test_the_store_holds_every_kept_document_once_with_its_tokens(
    topics: Path, make_dedup: Make, tmp_path: Path
) -> None:
    removed = frozenset(f"doc-{i:05d}" for i in range(0, 300, 4))
    dedup = make_dedup(topics, removed)
    sidecars = _sidecars(topics, tmp_path, dedup)
    store = build_store(topics, sidecars, tmp_path, StoreConfig(validation=0.1))
    cells = _cells(store)
    found = {str(row["id"]): row for rows in cells.values() for row in rows}
    assert len(found) == sum(len(rows) for rows in cells.values()) == 225
    assert not removed & found.keys()
    expected = {
        row["id"]: row["tokens"]
        for part in part_names(read_manifest(topics))
        for row in read_part(sidecars.tokens / part, ["id", "tokens"]).to_pylist()
    }
    assert all(row["tokens"] == expected[id_] for id_, row in found.items())
    summary = read_manifest(store).summary
    held_out = cells.pop("validation")
    assert summary["validation"] == {
        "documents": len(held_out),
        "tokens": sum(len(row["tokens"]) for row in held_out),  # type: ignore[arg-type]
    }
    assert summary["cells"] == {
        name: {"documents": len(rows), "tokens": sum(len(r["tokens"]) for r in rows)}  # type: ignore[arg-type]
        for name, rows in cells.items()
    }
    assert summary["tokenizer"] == read_manifest(sidecars.tokens).summary["tokenizer"]
    for name in cells:
        Store(store).check_lengths(name)
    files = {str(path.relative_to(store)) for path in store.glob("*/*.arrow")}
    assert files == summary["lengths"].keys()


def test_no_held_out_document_or_relative_of_one_is_trained_on(
    topics: Path, make_dedup: Make, tmp_path: Path
) -> None:
    families = {f"doc-{i:05d}": f"doc-{i // 3 * 3:05d}" for i in range(300)}
    sidecars = _sidecars(topics, tmp_path, make_dedup(topics, frozenset(), families))
    sizes = set()
    for seed in range(20):
        store = build_store(topics, sidecars, tmp_path, StoreConfig(validation=0.1, seed=seed))
        cells = _cells(store)
        held_out = {families[str(row["id"])] for row in cells.pop("validation")}
        trained = {families[str(row["id"])] for rows in cells.values() for row in rows}
        assert not held_out & trained
        assert len(held_out | trained) == 100
        sizes.add(len(held_out))
    assert all(1 <= size <= 25 for size in sizes)
    assert len(sizes) > 3


def test_no_near_duplicate_of_a_held_out_document_of_an_exempt_source_is_trained_on(
    make_documents: Make, tmp_path: Path
) -> None:
    words = [f"word{i}" for i in range(2000)]
    texts, sources, families = [], [], []
    for family in range(60):
        own = words[20 * family : 20 * family + 60]
        for copy in range(family % 4 + 1):
            texts.append(" ".join(own[copy // 2 :]))
            sources.append("books" if copy % 3 < 2 else "web")
            families.append(family)
    documents = make_documents(texts, sources, parts=2)
    removed = dedup([documents], tmp_path, DedupConfig(exempt=("books",)))
    assert read_manifest(removed).summary["kept"] > 60
    sidecars = _sidecars(documents, tmp_path, removed)
    for seed in range(10):
        store = build_store(documents, sidecars, tmp_path, StoreConfig(validation=0.3, seed=seed))
        cells = _cells(store)
        held_out = {families[int(str(row["id"])[4:])] for row in cells.pop("validation")}
        trained = {families[int(str(row["id"])[4:])] for rows in cells.values() for row in rows}
        assert held_out
        assert not held_out & trained


def test_memory_bounds_change_files_and_not_the_order_of_documents(
    topics: Path, tmp_path: Path
) -> None:
    sidecars = _sidecars(topics, tmp_path)
    one = build_store(topics, sidecars, tmp_path, StoreConfig())
    many = build_store(topics, sidecars, tmp_path, StoreConfig(bucket_bytes=10_000))
    assert len(read_manifest(many).files) > len(read_manifest(one).files)
    assert _cells(one) == _cells(many)
    assert not (many / "spill").exists()


def test_another_order_of_the_input_gives_the_same_store(
    make_documents: Make, tmp_path: Path
) -> None:
    texts = [f"text number {i}" for i in range(30)]
    ids = [f"id{i}" for i in range(30)]
    stores = []
    for order in (range(30), range(29, -1, -1)):
        documents = make_documents([texts[i] for i in order], ids=[ids[i] for i in order])
        stores.append(
            _cells(build_store(documents, _sidecars(documents, tmp_path), tmp_path, StoreConfig()))
        )
    assert {k: [r["id"] for r in v] for k, v in stores[0].items()} == {
        k: [r["id"] for r in v] for k, v in stores[1].items()
    }


def test_a_sidecar_of_other_rows_is_named(topics: Path, tmp_path: Path) -> None:
    sidecars = _sidecars(topics, tmp_path)
    path = sidecars.domains / "part-00001.parquet"
    table = read_part(path, ["id", "domain"])
    write_table(path, table.slice(1))
    with pytest.raises(MarinError, match=r"part-00001.*149 rows for 150 documents"):
        build_store(topics, sidecars, tmp_path, StoreConfig())
    write_table(path, table.take(list(range(149, -1, -1))))
    with pytest.raises(MarinError, match="row 0 is document doc-00299, expected doc-00150"):
        build_store(topics, sidecars, tmp_path, StoreConfig())


def test_a_corpus_of_which_nothing_is_kept_is_one_line(
    make_documents: Make, make_dedup: Make, tmp_path: Path
) -> None:
    documents = make_documents(["a", "b"])
    dedup = make_dedup(documents, frozenset({"doc-00000", "doc-00001"}))
    with pytest.raises(MarinError, match="no document was kept"):
        _sidecars(documents, tmp_path, dedup)
    sidecars = _sidecars(documents, tmp_path)
    with pytest.raises(MarinError, match="no document is left"):
        build_store(documents, sidecars, tmp_path, StoreConfig(validation=0.999))
