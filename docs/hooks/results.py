"""Puts committed result files into pages: a page says `<!-- results: NAME -->`, and gets the table
of `benches/results/NAME.json`, or says `<!-- results -->` and gets all of them."""

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benches" / "results"
_MARK = re.compile(r"<!-- results(?:: ([\w-]+))? -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _MARK.sub(lambda match: tables(match[1]), markdown)


def tables(name: str | None) -> str:
    """Markdown of one result file, or of all; a missing one is an error of the build."""
    if name is not None:
        return table(json.loads((RESULTS / f"{name}.json").read_text()))
    parts = []
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text())
        if isinstance(found, dict) and isinstance(found.get("results"), list):
            parts.append(f"## {path.stem}\n\n{table(found)}")
    return "\n\n".join(parts)


def table(found: dict[str, Any]) -> str:
    """Machine, then one line per tool and metric; the value is the median of the runs."""
    machine = found.get("machine", "")
    if isinstance(machine, dict):
        machine = ", ".join(f"{key}: {value}" for key, value in machine.items())
    lines = [
        f"Measured on {machine}.",
        "",
        "| tool | version | metric | value | unit |",
        "|---|---|---|---:|---|",
    ]
    for line in found["results"]:
        cells = [
            line["tool"],
            line["version"],
            line["metric"],
            _number(line["value"]),
            line["unit"],
        ]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
