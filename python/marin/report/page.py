"""A page: headings, facts, tables, plots and pairs of texts, rendered with everything escaped."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from marin.engine import atomic_file, check_output_file
from marin.errors import MarinError

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
:root { --ink: #1c2733; --soft: #5b6b7b; --line: #dde3ea; --card: #fff; --back: #f5f7f9;
  --accent: #0b6e99; --mark: #ffe3b3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaf0; --soft: #9fb0c0; --line: #33414e;
  --card: #1c252e; --back: #141b22; --accent: #6cc3e8; --mark: #5c4520; }
  figure svg { background: #fff; border-radius: 6px; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem 4rem; color: var(--ink);
  background: var(--back); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p { max-width: 48rem; color: var(--soft); margin: .25rem 0 1rem; }
nav a { color: var(--accent); margin-right: 1rem; }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.fact { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .9rem; min-width: 9rem; }
.fact b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.fact span { color: var(--soft); font-size: .85rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(32rem, 100%), 1fr));
  gap: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .75rem; } figure svg { width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .88rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; background: var(--card);
  font-variant-numeric: tabular-nums; font-size: .92rem; margin: .5rem 0 1rem; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; } td.n { text-align: right; white-space: nowrap; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: .75rem; margin: .5rem 0 1.25rem; }
.pair div { min-width: 0; } .pair h3 { font-size: .88rem; margin: .25rem 0; font-weight: 600;
  overflow-wrap: anywhere; } pre { background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: .6rem; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 18rem; overflow: auto; font-size: .8rem; }
mark { background: var(--mark); color: inherit; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ subtitle }}</p>
<nav>{% for section in sections %}<a href="#{{ loop.index }}">{{ section.title }}</a>
{% endfor %}</nav>
{% for section in sections %}
<section id="{{ loop.index }}">
<h2>{{ section.title }}</h2>
{% if section.text %}<p>{{ section.text }}</p>{% endif %}
{% if section.facts %}<div class="facts">
{% for label, value in section.facts %}<div class="fact"><b>{{ value }}</b><span>{{ label }}</span>
</div>{% endfor %}</div>{% endif %}
{% if section.plots %}<div class="plots">{% for caption, svg in section.plots %}
<figure role="img" aria-label="{{ caption }}">{{ svg }}
<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}</div>{% endif %}
{% for table in section.tables %}<div class="table"><table>
<tr>{% for column in table.columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row in table.rows %}<tr>{% for value in row %}
<td{% if value is number %} class="n"{% endif %}>{{ value | cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>{% endfor %}
{% for pair in section.pairs %}<div class="pair">
{% for heading, text in pair %}<div><h3>{{ heading }}</h3><pre>{{ text }}</pre></div>
{% endfor %}</div>{% endfor %}
</section>
{% endfor %}
<footer>{{ footer }}</footer>
</body>
</html>
"""
_POLICY = next(line for line in _TEMPLATE.splitlines() if "Content-Security-Policy" in line)
"""By this line pages are known again."""


@dataclass(frozen=True)
class _Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass
class Section:
    """One part of a page; the methods add to it in the order in which kinds are shown."""

    title: str
    text: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    plots: list[tuple[str, Markup]] = field(default_factory=list)
    tables: list[_Table] = field(default_factory=list)
    pairs: list[tuple[tuple[str, str | Markup], ...]] = field(default_factory=list)

    def fact(self, label: str, value: object) -> None:
        self.facts.append((label, format_cell(value)))

    def plot(self, caption: str, svg: Markup) -> None:
        """`svg` comes from `marin.report.charts`, which escapes the texts in it."""
        self.plots.append((caption, svg))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.tables.append(_Table(columns, rows))

    def pair(self, *texts: tuple[str, str | Markup]) -> None:
        """Texts side by side under their headings."""
        self.pairs.append(texts)


class Page:
    """A page that is built section by section and written as one file."""

    def __init__(self, title: str, subtitle: str = "", footer: str = "") -> None:
        self._values: Mapping[str, Any] = {"title": title, "subtitle": subtitle, "footer": footer}
        self._sections: list[Section] = []

    def section(self, title: str, text: str = "") -> Section:
        section = Section(title, text)
        self._sections.append(section)
        return section

    def html(self) -> str:
        environment = Environment(autoescape=True)
        environment.filters["cell"] = format_cell
        template = environment.from_string(_TEMPLATE)
        return template.render(sections=self._sections, **self._values)

    def write(self, path: Path) -> None:
        """Writes the page.

        Raises:
          MarinError: something else than a page of marin's is there.
        """
        if path.exists() and not is_page(path):
            raise MarinError(f"{path}: exists and is no page of marin's; move it away")
        with atomic_file(path) as partial:
            # Lone surrogates in a document's text must not stop the report on it.
            partial.write_text(self.html(), encoding="utf-8", errors="backslashreplace")


def is_page(path: Path) -> bool:
    """Whether a file is a page that was written here."""
    try:
        with path.open("rb") as file:
            start = file.read(1 << 10)
    except OSError:
        return False
    return start.startswith(b"<!doctype html>") and _POLICY.encode() in start


def check_page(path: Path, inputs: Iterable[Path] = (), *, own: Path | None = None) -> None:
    """Raises `MarinError` where a page must not be written; see `check_output_file`."""
    check_output_file(path, "page", is_page, inputs=inputs, own=own)


def format_cell(value: object) -> str:
    """Thousands separated, four significant digits, a dash for None, all else as it is."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
