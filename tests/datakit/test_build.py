import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import marin
from marin import MarinError
from marin.cli.app import app
from marin.datakit import build, load_settings, plan
from marin.datakit.dedup.signatures import sign_files
from marin.datakit.inspect import trace
from marin.engine import read_manifest

TOPICS = (
    "the river flows past the old mill and the trees along the bank of the valley {}",
    "a neural network learns its weights by gradient descent on a loss function {}",
    "the court held that the contract was void and the party was liable for damages {}",
)
CONFIG = """
output = "out"
engine = "{engine}"

[[source]]
name = "lines"
paths = ["lines.jsonl"]

[[source]]
name = "notes"
paths = ["notes"]

[[evaluation]]
name = "quiz"
paths = ["quiz.jsonl"]

[tokenizer]
vocab_size = 300
train_on = ["lines"]

[embed]
dimensions = 32

[domains]
domains = 3

[decontaminate]
n = 8

[store]
validation = 0.1
bucket_bytes = 10000
"""
QUESTION = (
    "who wrote the longest letter about the smallest garden in the northern town of the valley"
)


def _write(folder: Path, engine: str = "local") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    texts = [
        TOPICS[i % 3].format(f"number {i} of many, {i * 7 % 11} times {i}.") for i in range(200)
    ]
    texts[10] = texts[13]
    texts[20] += f" {QUESTION.upper()}?"
    lines = [json.dumps({"id": f"line-{i}", "text": text}) for i, text in enumerate(texts)]
    (folder / "lines.jsonl").write_text("\n".join([*lines, "broken"]))
    (folder / "quiz.jsonl").write_text(json.dumps({"id": "q1", "text": QUESTION}))
    (folder / "notes").mkdir(exist_ok=True)
    for i in range(30):
        (folder / "notes" / f"{i}.txt").write_text(TOPICS[i % 3].format(f"note {i} says {i * i}"))
    path = folder / "build.toml"
    path.write_text(CONFIG.format(engine=engine))
    return path


def _contents(store: Path) -> dict[str, str]:
    return {file.name: file.xxh3 for file in read_manifest(store).files}


def test_a_build_adds_up_and_says_where_every_document_went(tmp_path: Path) -> None:
    done = build(load_settings(_write(tmp_path)))
    removals, store = read_manifest(done["dedup"]).summary, read_manifest(done["store"]).summary
    assert (removals["documents"], removals["removed_exact"]) == (230, 1)
    assert removals["removed_contaminated"] == 1
    held = store["validation"]["documents"]
    assert sum(cell["documents"] for cell in store["cells"].values()) + held == removals["kept"]
    tokens = sum(cell["tokens"] for cell in store["cells"].values()) + store["validation"]["tokens"]
    kept = 0
    for entry in read_manifest(done["store"]).files:
        with pa.memory_map(str(done["store"] / entry.name)) as source:
            kept += len(pa.ipc.open_file(source).read_all()["tokens"].combine_chunks().flatten())
    assert tokens == kept
    assert sum(row["removed_before"] for row in removals["by_source"]) == 1
    gone = trace(tmp_path / "out", "line-20")
    assert (gone["reason"], gone["representative"], gone["cell"]) == ("contaminated", "q1", None)
    assert gone["evidence"].startswith("WHO WROTE THE LONGEST LETTER")
    there = trace(tmp_path / "out", "line-21")
    assert there["keep"]
    assert there["cell"] in (*store["cells"], "validation")
    with pytest.raises(MarinError, match="no document 'line-999'"):
        trace(tmp_path / "out", "line-999")


def test_evidence_is_shown_only_where_the_document_went_for_it(tmp_path: Path) -> None:
    path = _write(tmp_path)
    build(load_settings(path))
    quiz = '[[evaluation]]\nname = "quiz"\npaths = ["quiz.jsonl"]\n'
    assert quiz in path.read_text()
    path.write_text(path.read_text().replace(quiz, ""))
    build(load_settings(path))
    there = trace(tmp_path / "out", "line-20")
    assert there["keep"]
    assert "evidence" not in there


def test_a_second_build_does_nothing_and_a_changed_source_redoes_only_its_own(
    tmp_path: Path,
) -> None:
    path = _write(tmp_path)
    settings = load_settings(path)
    assert {p.state for p in plan(settings)} == {"to do", "waits"}
    assert not (tmp_path / "out").exists()
    first = build(settings)
    assert {p.state for p in plan(settings)} == {"finished"}
    assert build(settings) == first
    (tmp_path / "notes" / "3.txt").write_text("a new note about the mill")
    states = {p.name: p.state for p in plan(settings)}
    assert states["ingest notes"] == "to do"
    again = build(settings)
    changed = {name for name in first if again[name] != first[name]}
    own = {f"{kind} notes" for kind in ("ingest", "tokens", "embedding", "scores", "matches")}
    joins = {"corpus", "tokens", "embedding", "scores", "matches", "contamination", "dedup"}
    assert changed == own | joins | {"domains", "quality", "store"}


def test_another_evaluation_set_that_finds_the_same_costs_no_deduplication(
    tmp_path: Path,
) -> None:
    path = _write(tmp_path)
    first = build(load_settings(path))
    more = json.dumps({"id": "q2", "text": "an item that nobody ever wrote down anywhere at all"})
    with (tmp_path / "quiz.jsonl").open("a") as quiz:
        quiz.write(f"\n{more}")
    again = build(load_settings(path))
    changed = {name for name in first if again[name] != first[name]}
    own = {"ingest evaluation quiz", "matches lines", "matches notes", "matches"}
    assert changed == {*own, "contamination"}


def test_one_worker_and_two_give_the_same_bytes(tmp_path: Path) -> None:
    one = build(load_settings(_write(tmp_path / "a")))
    two = build(load_settings(_write(tmp_path / "b", engine="2")))
    for stage in ("contamination", "dedup", "store"):
        assert _contents(one[stage]) == _contents(two[stage])


def test_the_documents_are_signed_by_the_build_s_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[int] = []

    def sign(files: Sequence[object], *arguments: Any) -> list[Path]:
        signed.append(len(files))
        return sign_files(files, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("marin.datakit.dedup.run.sign_files", sign)
    build(load_settings(_write(tmp_path / "a")))
    assert signed == []
    build(load_settings(_write(tmp_path / "b", engine="2")))
    assert signed == [2]


def test_two_ray_nodes_give_the_same_bytes_as_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    # Worker processes import the package from where this process has it.
    monkeypatch.setenv("PYTHONPATH", str(Path(marin.__file__).parents[1]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        spread = build(load_settings(_write(tmp_path / "a", engine="auto")))
    finally:
        ray.shutdown()
        cluster.shutdown()
    here = build(load_settings(_write(tmp_path / "b")))
    assert _contents(spread["store"]) == _contents(here["store"])


# Runs a build in forks of one warmed-up process; each is killed when it is about to finish a file
# for the second, third, ... seventh time.
KILLER = """
import os, signal, sys
import sklearn.cluster  # once, and not in every fork
from pathlib import Path
from marin.datakit import build, load_settings

settings = load_settings(Path(sys.argv[1]))
for attempt in range(500):
    child = os.fork()
    if child == 0:
        finish, left = Path.replace, attempt % 6 + 1

        def kill_or_finish(path, target):
            global left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return finish(path, target)

        Path.replace = kill_or_finish
        build(settings)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(attempt)
"""


def test_a_build_killed_at_every_few_files_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = build(load_settings(_write(tmp_path / "a")))
    path = _write(tmp_path / "b")
    command = [sys.executable, "-c", KILLER, str(path)]
    kills = int(subprocess.run(command, check=True, capture_output=True).stdout)
    assert 10 <= kills < 499
    done = build(load_settings(path))
    assert _contents(done["store"]) == _contents(whole["store"])
    left = [p.name for d in done.values() for p in d.rglob("*") if p.name.startswith(".partial")]
    assert left == []


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('output = "out"', "", "output is missing"),
        ("vocab_size = 300", "vocab_sise = 300", "tokenizer: unknown key 'vocab_sise'"),
        ("domains = 3", 'domains = "many"', "domains: domains = 'many'"),
        ('name = "notes"', 'name = "lines"', "two sources are named 'lines'"),
        ('train_on = ["lines"]', 'train_on = ["line"]', "train_on names 'line'"),
        ("[embed]", "[embedding]", "unknown key 'embedding'"),
        ("n = 8", "n = 2", "n = 2: expected 6 to 100 words"),
        ('engine = "local"', 'engine = "gpu"', "engine 'gpu': expected local"),
        ("[embed]", "[embed", "not valid TOML"),
        ('paths = ["notes"]', 'paths = ["note"]', "note: no such file or folder; paths are rel"),
        ('paths = ["notes"]', 'paths = ["x/n*"]', "nothing matches the pattern .*x/n"),
        ('paths = ["notes"]', 'paths = "notes"', "paths = 'notes': expected a list"),
        ('name = "notes"', 'name = "no/tes"', "source name 'no/tes': expected letters"),
        ("vocab_size = 300", 'vocab_size = "x"', "vocab_size = 'x': expected a whole number"),
        ("vocab_size = 300", "vocab_size = 8", "tokenizer: vocab_size = 8: expected at least"),
        ("validation = 0.1", "validation = 2", "store: validation = 2.0: expected a share"),
        ("validation = 0.1", "seed = -1", "store: seed = -1: expected 0 to"),
        ("[embed]", "[quality]\nbuckets = 0\n[embed]", "quality: buckets = 0: expected 1 to 100"),
        ("[embed]", '[dedup]\npriority = ["x"]\n[embed]', "dedup: priority names 'x', expected"),
        ("dimensions = 32", "dimensions = 8", "embed: dimensions = 8: expected 16 to 16,384"),
    ],
)
def test_a_wrong_configuration_is_one_line_that_names_the_key(
    tmp_path: Path, old: str, new: str, match: str
) -> None:
    path = _write(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(MarinError, match=match) as error:
        plan(load_settings(path))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_paths_of_a_file_in_a_subfolder_are_relative_to_it_and_names_of_datasets_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adv" / "there").mkdir(parents=True)
    path = Path("adv/build.toml")

    def paths(*written: str) -> tuple[str, ...]:
        path.write_text(f'output = "my/out"\n[[source]]\nname = "a"\npaths = {list(written)}')
        settings = load_settings(path)
        assert settings.output == Path("adv/my/out")
        return settings.sources[0].paths

    assert paths("there", "own/name") == ("adv/there", "own/name")
    for written in ("corpus", "a/b/c", "./x"):
        with pytest.raises(
            MarinError, match=r"adv/\S+: no such file or folder; paths are relative"
        ):
            paths(written)
    with pytest.raises(MarinError, match=r"nothing matches the pattern adv/corpus/nothing\*\.py"):
        paths("corpus/nothing*.py")


def test_an_empty_source_is_told_and_a_build_of_nothing_stops_after_reading(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _write(tmp_path)
    for note in (tmp_path / "notes").iterdir():
        note.unlink()
    done = build(load_settings(path))
    assert read_manifest(done["corpus"]).rows == 200
    line = f"source 'notes': no documents in {tmp_path / 'notes'}: no files found"
    assert line in caplog.messages
    (tmp_path / "lines.jsonl").write_text("broken\n")
    path.write_text(path.read_text().replace('"out"', '"new"'))
    with pytest.raises(MarinError, match=r"lines.jsonl: 1 quarantined .*; source 'notes': no doc"):
        build(load_settings(path))
    assert {p.name.partition("-")[0] for p in (tmp_path / "new").iterdir()} == {"ingest"}


def test_one_id_in_two_sources_is_one_line(tmp_path: Path) -> None:
    path = _write(tmp_path)
    text = path.read_text().replace('paths = ["notes"]', 'paths = ["more.jsonl"]')
    path.write_text(text)
    (tmp_path / "more.jsonl").write_text('{"id": "line-7", "text": "other"}')
    with pytest.raises(MarinError, match="source 'notes': document 'line-7' is in another source"):
        build(load_settings(path))


def test_the_command_line_builds_plans_and_inspects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path)

    def run(*arguments: object) -> dict[str, object]:
        app([*map(str, arguments), "--json"], standalone_mode=False)
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    built = run("datakit", "build", path)
    assert Path(str(built["report"])).read_text().startswith("<!doctype html>")
    assert len(list(Path(str(built["report"])).parent.glob("*.html"))) == 6
    planned = run("datakit", "build", path, "--plan")
    assert all(step["state"] == "finished" for step in planned["steps"])  # type: ignore[attr-defined]
    answer = run("datakit", "inspect", tmp_path / "out", "--document", "line-1")
    assert answer["source"] == "lines"
    assert "Cells" in run("datakit", "inspect", tmp_path / "out")["tables"]  # type: ignore[operator]
    directories: dict[str, str] = built["directories"]  # type: ignore[assignment]
    kept = run(
        "datakit", "materialize", directories["corpus"], "--dedup", directories["dedup"],
        "--root", tmp_path / "more",
    )  # fmt: skip
    assert kept["rows"] == 228
    summary = run("datakit", "inspect", built["store"])["tables"]["Summary"]  # type: ignore[index]
    assert ["tokens", built["tokens"]] in summary["rows"]


@pytest.mark.parametrize("output", ["notes", "notes/out", "."])
def test_an_output_among_the_sources_is_refused_before_the_work(
    tmp_path: Path, output: str
) -> None:
    path = _write(tmp_path)
    path.write_text(path.read_text().replace('output = "out"', f'output = "{output}"'))
    held = sorted(tmp_path.rglob("*"))
    for run in (plan, build):
        with pytest.raises(MarinError, match=r"source '(lines|notes)'.*lies around"):
            run(load_settings(path))
    assert sorted(tmp_path.rglob("*")) == held
