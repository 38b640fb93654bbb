"""The pages of the site do what they say: every shell and Python block runs, in order.

Blocks of one page share a folder and one shell, so variables last. `toml` and `json` blocks with a
title are files. A block after `<!-- not run: REASON -->` is left out; the reason is one of
`REASONS`. Pages other than the tutorial begin with a copy of the folder that the tutorial left.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from support.compilation import quick_flags

import marin.model
import marin.train
from marin.train.config import RULES, TrainConfig, WatchConfig

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"
REASONS = ("a cluster", "a GPU", "a clone of the repository", "tested elsewhere")
RUN = ("tutorial.md", "howto/corpus.md", "howto/tokenizer.md", "howto/context.md",
       "howto/shorten.md", "howto/drops.md", "howto/plan.md")  # fmt: skip

_FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.M | re.S)
_MARK = re.compile(r"<!-- not run: (.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        mark = _MARK.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], match[2], match[3], line, mark and mark[1]))
    return found


def script(page: Path) -> str:
    """One shell script of all blocks that run; it says which one it is at."""
    parts = ["set -euo pipefail"]
    for block in blocks(page):
        if block.reason is not None:
            continue
        parts.append(f"echo '== {page.name}:{block.line}'")
        if block.language == "sh":
            parts.append(block.text)
        elif block.language == "python":
            parts.append(f"python - <<'END-OF-BLOCK'\n{block.text}END-OF-BLOCK")
        elif block.language in ("toml", "json") and block.title:
            parts.append(f"cat > {block.title} <<'END-OF-BLOCK'\n{block.text}END-OF-BLOCK")
    return "\n".join(parts) + "\n"


def environment(bin_folder: Path) -> dict[str, str]:
    """`marin` and `python` are those of the tests; models compile without optimization."""
    for name, options in (("marin", "-m marin.cli"), ("python", "")):
        command = bin_folder / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        command.chmod(0o755)
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(filter(None, paths)),
        "XLA_FLAGS": " ".join(quick_flags()),
        "JAX_PLATFORMS": "cpu",
        "WANDB_MODE": "disabled",
    }


@pytest.mark.timeout(280)
def test_every_block_of_every_page_runs(tmp_path: Path) -> None:
    for name in ("bin", "tutorial"):
        (tmp_path / name).mkdir()
    env = environment(tmp_path / "bin")
    for name in RUN:
        folder = tmp_path / "tutorial"
        if name != "tutorial.md":
            folder = tmp_path / Path(name).stem
            shutil.copytree(tmp_path / "tutorial", folder)
        done = subprocess.run(
            ["bash", "-c", script(PAGES / name)], cwd=folder, env=env,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_a_block_is_run_or_says_what_it_needs() -> None:
    for page in [*PAGES.rglob("*.md"), ROOT / "README.md"]:
        name = str(page.relative_to(PAGES)) if page.is_relative_to(PAGES) else page.name
        for block in blocks(page):
            if block.reason is not None:
                assert block.reason in REASONS, f"{name}:{block.line}: {block.reason}"
            elif block.language in ("sh", "python"):
                assert name in RUN, f"{name}:{block.line}: not run and does not say why"
            else:
                assert block.language in ("toml", "json", "text"), f"{name}:{block.line}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES.rglob("*.md"):
        assert str(page.relative_to(PAGES)) in navigation


def test_every_part_of_a_runs_configuration_is_in_the_reference() -> None:
    parts = [kind for kind in get_type_hints(TrainConfig).values() if is_dataclass(kind)]
    assert WatchConfig in parts
    public = {*marin.model.__all__, *marin.train.__all__}
    assert {kind.__name__ for kind in parts} <= public


def test_the_page_on_training_names_every_rule_and_limit_of_the_watch() -> None:
    text = (PAGES / "parts" / "train.md").read_text()
    for name in [*RULES, *(f"watch.{field.name}" for field in fields(WatchConfig)), "--profile"]:
        assert f"`{name}`" in text or f" {name} " in text, name


def test_tables_of_results_hold_what_the_files_hold() -> None:
    spec = importlib.util.spec_from_file_location("results", PAGES / "hooks" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    line = {"tool": "marin", "version": "1", "metric": "a|b", "value": 12345.6, "unit": "rows/s"}
    table = hook.table({"machine": {"cores": 2}, "results": [line]})
    assert "Measured on cores: 2." in table
    assert "| marin | 1 | a\\|b | 12,346 | rows/s |" in table
    with pytest.raises(FileNotFoundError):
        hook.on_page_markdown("<!-- results: no-such-bench -->")
