"""The decisions of `dedup` against all pairs of a corpus, compared as Python sets."""

import random
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.datakit.dedup import DedupConfig, Shingling, dedup, dedup_into, save_index
from marin.engine import Local, read_manifest
from marin.errors import MarinError


def shingles(text: str, n: int = 5) -> frozenset:
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(*(words[i:] for i in range(n)), strict=False))


def jaccard(a: frozenset, b: frozenset) -> float:
    return len(a & b) / len(a | b) if a | b else 0.0


def corpus(seed: int, clusters: int = 60) -> list[str]:
    """Texts with versions of themselves at all degrees of similarity, and exact copies."""
    rng = random.Random(seed)
    vocabulary = [f"term{i}" for i in range(400)]
    texts = []
    for _ in range(clusters):
        base = rng.choices(vocabulary, k=rng.choice([8, 30, 100, 400]))
        for _ in range(rng.choice([1, 2, 5])):
            version = list(base)
            for _ in range(rng.choice([0, 0, 1, 2, len(base) // 40, len(base) // 10])):
                version[rng.randrange(len(version))] = rng.choice(vocabulary)
            texts.append(" ".join(version) + rng.choice(["", ".", "\n"]))
    rng.shuffle(texts)
    return texts


def write(path: Path, texts: list[str], source: str = "web", first: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [f"{source}-{first + i:05d}" for i in range(len(texts))]
    table = pa.table({"id": ids, "text": texts, "source": [source] * len(texts)})
    pq.write_table(table, path, row_group_size=50)
    return path


def read(out: Path) -> dict[str, dict]:
    rows = [
        row for path in sorted(out.rglob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_every_removal_is_true_and_hardly_any_is_missed(threshold: float, tmp_path: Path) -> None:
    texts = corpus(seed=1, clusters=80)
    path = write(tmp_path / "a.parquet", texts)
    rows = list(read(dedup([path], tmp_path, DedupConfig(threshold=threshold))).values())
    sets = {row["id"]: shingles(text) for row, text in zip(rows, texts, strict=True)}
    by_id = {row["id"]: row for row in rows}
    for row in rows:
        if row["keep"]:
            assert (row["cluster"], row["reason"], row["representative"]) == (row["id"], "", None)
            continue
        twin = by_id[row["representative"]]
        truth = jaccard(sets[row["id"]], sets[twin["id"]])
        assert twin["keep"]
        assert truth >= threshold
        assert row["similarity"] == pytest.approx(truth, rel=1e-6)
        assert (row["reason"] == "exact") == (truth == 1.0)
        assert row["cluster"] == twin["id"]
    true_pairs = [
        (a, b) for a, b in combinations(sets, 2) if jaccard(sets[a], sets[b]) >= threshold
    ]
    both_kept = sum(by_id[a]["keep"] and by_id[b]["keep"] for a, b in true_pairs)
    assert len(true_pairs) > 60
    assert both_kept <= 0.01 * len(true_pairs)


def test_containment_removes_what_is_inside_another(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(100)]
    path = write(tmp_path / "a.parquet", [" ".join(words), " ".join(words[:88])])
    jaccard_rows = read(dedup([path], tmp_path, DedupConfig(threshold=0.9)))
    assert all(row["keep"] for row in jaccard_rows.values())
    config = DedupConfig(threshold=0.9, measure="containment")
    inside = read(dedup([path], tmp_path, config))["web-00001"]
    assert (inside["keep"], inside["similarity"]) == (False, 1.0)


def test_means_and_order_do_not_show_in_the_bytes(tmp_path: Path) -> None:
    texts = corpus(seed=2)
    half = len(texts) // 2
    a = write(tmp_path / "in" / "a.parquet", texts[:half])
    b = write(tmp_path / "in" / "b.parquet", texts[half:], first=half)
    outputs = set()
    engines = [None, None, Local(), Local(2)]
    for number, (inputs, config) in enumerate(
        [
            ([a, b], DedupConfig(threads=1)),
            ([b, a], DedupConfig(threads=2)),
            ([b, a], DedupConfig(threads=4, memory=1 << 20)),
            ([tmp_path / "in"], DedupConfig(threads=3)),
        ]
    ):
        out = dedup_into(inputs, tmp_path / f"out{number}", config, engine=engines[number])
        assert not (out / ".signatures").exists()
        outputs.add(
            tuple((out / name).read_bytes() for name in ("a.parquet", "b.parquet", "manifest.json"))
        )
    assert len(outputs) == 1


@pytest.mark.parametrize("engine", [None, Local(2)])
def test_sidecars_may_lie_in_a_folder_of_any_name_but_that_of_the_work(
    engine: Local | None, tmp_path: Path
) -> None:
    names = ["a.parquet", "signatures/00000.parquet", "signatures/x.parquet"]
    for number, name in enumerate(names):
        write(tmp_path / "in" / name, ["cat"], first=number)
    out = dedup_into([tmp_path / "in"], tmp_path / "out", engine=engine)
    assert sorted(read(out)) == [f"web-0000{number}" for number in range(len(names))]
    assert [entry.name for entry in read_manifest(out).files] == names
    write(tmp_path / "in" / ".signatures" / "00000.parquet", ["dog"], first=9)
    with pytest.raises(MarinError, match=r"sidecar would be .signatures/00000.parquet.*rename"):
        dedup_into([tmp_path / "in"], tmp_path / "other", engine=engine)


@pytest.mark.parametrize("engine", [None, Local(2)])
def test_ids_and_sources_of_bytes_are_text_or_refused_with_every_engine(
    engine: Local | None, tmp_path: Path
) -> None:
    def documents(name: str, ids: pa.Array, sources: pa.Array) -> Path:
        path = tmp_path / name
        table = pa.table({"id": ids, "text": ["cat", "dog", "cat"], "source": sources})
        pq.write_table(table, path, row_group_size=2)
        return path

    good = [b"a", "\u00e9".encode(), b"c"]
    sources = pa.array([b"web", None, b"web"]).dictionary_encode()
    path = documents("good.parquet", pa.array(good), sources)
    config = DedupConfig(exempt=("web",))
    # The second file is there for an engine to have work for two processes.
    other = write(tmp_path / "other.parquet", ["bird"])
    out = dedup_into([path, other], tmp_path / "out", config, engine=engine)
    index = save_index([path, other], out, tmp_path / "index", config)
    assert pq.read_table(out / "good.parquet")["id"].to_pylist() == ["a", "\u00e9", "c"]
    assert pq.read_table(index / "00000.parquet")["source"].to_pylist() == ["web", None, "web"]
    bad = pa.array([b"a", b"b", b"\xff"])
    unchecked = pa.StringArray.from_buffers(3, *bad.buffers()[1:])
    text = pa.array(["a", "b", "c"])
    exempt = DedupConfig(exempt=("a",))
    for number, (ids, sources, config, match) in enumerate(
        [
            (bad, text, None, r"2.parquet, row 2: its id b'\\xff' is not UTF-8; .*--make-ids"),
            (unchecked, text, None, r"row 2: its id b'\\xff' is not UTF-8"),
            (text, bad, None, r"row 2: its source b'\\xff' is not UTF-8; write it as text$"),
            (text, bad, exempt, r"row 2: its source b'\\xff' is not UTF-8; write it as text$"),
        ]
    ):
        path = documents("2.parquet", ids, sources)
        with pytest.raises(MarinError, match=match):
            dedup_into([path, other], tmp_path / f"{number}", config, engine=engine)


def test_texts_beyond_the_memory_are_read_again(tmp_path: Path) -> None:
    """1 MiB does not hold these shingle sets: the second pass and the file on disk are used."""
    rng = random.Random(3)
    texts = []
    for i in range(40):
        words = [f"{i}x{rng.randrange(1000)}" for _ in range(4000)]
        texts += [" ".join(words), " ".join(words[:3900])]
    path = write(tmp_path / "a.parquet", texts)
    small = dedup_into([path], tmp_path / "small", DedupConfig(memory=1 << 20))
    large = dedup_into([path], tmp_path / "large", DedupConfig(memory=1 << 28))
    assert (small / "a.parquet").read_bytes() == (large / "a.parquet").read_bytes()
    assert read_manifest(small).summary["removed_fuzzy"] == 40


def test_the_longest_stays_then_the_least_id(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(60)]
    texts = [" ".join(words[:57]), " ".join(words), " ".join(words[:59]), " ".join(words)]
    rows = read(dedup([write(tmp_path / "a.parquet", texts)], tmp_path))
    assert [row["keep"] for row in rows.values()] == [False, True, False, False]
    assert {row["representative"] for row in rows.values()} == {None, "web-00001"}


def test_priority_and_exemption_of_sources(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(60)]
    long, short = " ".join(words), " ".join(words[:58])
    inputs = [
        write(tmp_path / "crawl.parquet", [long, long], "crawl"),
        write(tmp_path / "books.parquet", [short, short], "books"),
    ]

    def kept(config: DedupConfig) -> list[str]:
        return [
            id for id, row in read(dedup(inputs, tmp_path / "out", config)).items() if row["keep"]
        ]

    assert kept(DedupConfig()) == ["crawl-00000"]
    assert kept(DedupConfig(priority=("books",))) == ["books-00000"]
    assert kept(DedupConfig(exempt=("books",))) == ["books-00000", "books-00001"]


def test_exempt_near_duplicates_stay_as_one_cluster(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(60)]
    # Each is near the next one only: the first and the last are not similar themselves.
    chain = [" ".join(words[4 * i : 4 * i + 40]) for i in range(6)]
    inputs = [
        write(tmp_path / "books.parquet", [*chain, chain[5].upper(), "nothing alike"], "books"),
        write(tmp_path / "crawl.parquet", [chain[2] + " w", "".join(words)], "crawl"),
    ]
    config = DedupConfig(threshold=0.6, exempt=("books",))
    outputs = {}
    for threads in (1, 4):
        out = dedup_into(inputs, tmp_path / f"{threads}", replace(config, threads=threads))
        outputs[threads] = [path.read_bytes() for path in sorted(out.iterdir())]
    assert outputs[1] == outputs[4]
    rows = read(tmp_path / "1")
    books = [rows[f"books-{i:05d}"] for i in range(8)]
    assert all(row["keep"] and row["representative"] is None for row in books)
    assert {row["cluster"] for row in books[:7]} == {"books-00000"}
    assert books[7]["cluster"] == "books-00007"
    assert (rows["crawl-00000"]["representative"], rows["crawl-00000"]["cluster"]) == (
        "books-00002",
        "books-00000",
    )
    assert read_manifest(tmp_path / "1").summary["cluster_sizes"] == [[8, 1]]


def test_a_finished_run_is_reused_and_another_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", corpus(seed=4, clusters=5))
    out = dedup_into([path], tmp_path / "out")
    before = (out / "a.parquet").stat().st_mtime_ns
    assert dedup_into([path], tmp_path / "out") == out
    assert (out / "a.parquet").stat().st_mtime_ns == before
    with pytest.raises(MarinError, match="other inputs or parameters"):
        dedup_into([path], tmp_path / "out", DedupConfig(threshold=0.9))


def test_the_summary_adds_up(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", corpus(seed=5))
    out = dedup([path], tmp_path)
    rows, summary = read(out), read_manifest(out).summary
    assert summary["documents"] == len(rows)
    assert summary["kept"] == sum(row["keep"] for row in rows.values())
    for reason in ("exact", "fuzzy"):
        count = sum(row["reason"] == reason for row in rows.values())
        assert (
            summary[f"removed_{reason}"]
            == count
            == sum(row[f"removed_{reason}"] for row in summary["by_source"])
        )
    assert sum(count for _, count in summary["similarity_histogram"]) == summary["removed_fuzzy"]
    assert len(summary["examples"]) >= 3
    for pair in summary["examples"]:
        assert rows[pair["removed"]]["representative"] == pair["kept"]
        assert 0 < len(pair["removed_text"]) <= 400


def test_characters_may_be_the_unit(tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog and runs away through the woods"
    path = write(tmp_path / "a.parquet", [text, text.replace("quick", "quack")])
    assert all(row["keep"] for row in read(dedup([path], tmp_path)).values())
    config = DedupConfig(shingling=Shingling(unit="character"))
    assert not read(dedup([path], tmp_path, config))["web-00001"]["keep"]


def test_mistakes_are_named_in_one_line(tmp_path: Path) -> None:
    good = write(tmp_path / "in" / "good.parquet", ["one text"])
    twice = tmp_path / "twice.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "a"], "text": ["x", "y", "z"]}), twice)
    null = tmp_path / "null.parquet"
    pq.write_table(pa.table({"id": ["a", None], "text": ["x", "y"]}), null)
    lacking = tmp_path / "lacking.parquet"
    pq.write_table(pa.table({"id": ["a"], "body": ["x"]}), lacking)
    number = tmp_path / "number.parquet"
    pq.write_table(pa.table({"id": ["a"], "text": [1.5]}), number)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no")
    for inputs, message in [
        ([twice], r"twice.parquet, row 2: id 'a' again, first at .*, row 0"),
        ([null], r"null.parquet, row 1: its id is null"),
        ([lacking], r"no column 'text'; columns found: id, body"),
        ([number], r"column 'text' is double"),
        ([broken], r"not a readable Parquet file"),
        ([tmp_path / "absent"], r"no such file or directory"),
        ([good, good], r"both sidecars would be good.parquet"),
        ([], r"no input"),
    ]:
        with pytest.raises(MarinError, match=message) as caught:
            dedup(inputs, tmp_path / "root")
        assert "\n" not in str(caught.value)
    for out in (tmp_path / "in", tmp_path / "in" / "below"):
        with pytest.raises(MarinError, match="would lie in the input"):
            dedup_into([tmp_path / "in"], out)
    for wrong in ({"threshold": 0.0}, {"threshold": 1.01}, {"measure": "cosine"}, {"memory": 5}):
        with pytest.raises(MarinError, match=next(iter(wrong))):
            DedupConfig(**wrong)
