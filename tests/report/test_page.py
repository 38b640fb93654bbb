"""Pages: every text is escaped, nothing is loaded, the same data gives the same bytes."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.errors import MarinError
from marin.report import Page, charts, read_metrics, write_run_report

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>&\"'{{ 7*7 }}$\\frac{"


def test_hostile_texts_are_escaped_wherever_they_stand() -> None:
    page = Page(HOSTILE, HOSTILE, HOSTILE)
    section = page.section(HOSTILE, HOSTILE)
    section.fact(HOSTILE, HOSTILE)
    section.table([HOSTILE], [[HOSTILE]])
    section.pair((HOSTILE, HOSTILE), (HOSTILE, HOSTILE))
    section.plot(HOSTILE, charts.bars([HOSTILE], {HOSTILE: [1.0], "b": [2.0]}, y=HOSTILE))
    html = page.html()
    assert "<script" not in html
    assert "<img" not in html
    assert "49" not in re.sub(r"<svg.*?</svg>|<style.*?</style>", "", html, flags=re.DOTALL)


def test_a_page_loads_nothing_from_elsewhere() -> None:
    page = Page("t")
    page.section("s").plot("p", charts.lines({"a": ([0, 1], [1.0, 2.0])}, x="x", y="y"))
    assert not re.search(r"(src|href)=\"(?!#)", re.sub(r"xlink:href=\"#", "", page.html()))
    assert "default-src 'none'" in page.html()


@settings(deadline=None, max_examples=15)
@given(st.text(max_size=40))
def test_a_plot_is_well_formed_for_any_label(label: str) -> None:
    svg = charts.lines({label: ([0, 1], [1.0, 2.0])}, x=label, y="y", events={label: 0.5})
    ET.fromstring(str(svg).replace("xlink:href", "href"))


def test_the_same_data_gives_the_same_bytes() -> None:
    def draw() -> str:
        return charts.heatmap([[0.5, 1.0], [1.5, 1.0]], x="x", y="y", label="l", center=1.0)

    assert draw() == draw()


def test_lone_surrogates_do_not_stop_a_page(tmp_path: Path) -> None:
    page = Page("t")
    page.section("s").pair(("a", "\ud800 x"))
    page.write(tmp_path / "p.html")
    assert "\\ud800 x" in (tmp_path / "p.html").read_text()


def record(step: int, **more: object) -> dict[str, object]:
    return {
        "step": step, "tokens": step * 64, "loss": 5.0 / step, "grad_norm": 1.0, "seq_len": 512,
        "phase": "main", "lr/muonh": 0.1, "drop_fraction": 0.0, "router_entropy": 1.0,
        "assigned": 128, "dropped_sender": 0, "dropped_receiver": 1, "time/data": 0.01,
        "time/step": 0.1, "tokens_per_second": 640.0, "expert_load": [[0.5, 0.5], [0.4, 0.6]],
        **more,
    }  # fmt: skip


def test_a_run_report_is_drawn_from_its_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [record(1, unigram_loss=6.5), record(2), record(3, seq_len=1024, phase="cool")]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 4, "lo')
    html = write_run_report(tmp_path).read_text()
    assert "rows of 1,024" in html
    assert "phase cool" in html
    assert "6.5" in html
    assert f"{100 * 3 / 384:.3f} %" in html
    assert "line 4 is cut and left out" in caplog.text


def test_a_run_report_shows_evaluations_and_the_mixture_beside_its_target(tmp_path: Path) -> None:
    cell, domain = "c00<b>", "d<i>"
    evaluated = {
        "eval/loss_micro": 4.125, "eval/loss_macro": 4.25, f"eval/loss/{domain}": 4.375,
        "eval/dropless/loss_micro": 4.0625, "eval/drop_fraction": 0.015625,
        "cells": {cell: 12_288, "c01": 512}, "cells_target": {cell: 12_345.4, "c01": 455.0},
    }  # fmt: skip
    lines = [record(1), record(2, **evaluated), record(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = write_run_report(tmp_path).read_text()
    for shown in ("<b>4.125</b>", "<b>4.062</b>", "0.01562", "12,345", "12,288", "c00&lt;b&gt;"):
        assert shown in html
    assert "<b>4</b><span>steps</span>" in html
    assert "in the first 3 steps" in html
    assert cell not in html
    assert domain not in html


def test_a_run_report_draws_all_that_a_run_logs(tmp_path: Path) -> None:
    logged = {
        "z_loss": 0.01, "qk_scale": 1.0, "update_norm/muonh": 0.5, "param_norm/adam": 2.0,
        "mfu": 0.25, "weight_lost": 0.001, "router_bias_norm": 0.75,
        "drop_fraction_by_layer": [0.0, 0.01], "router_bias_norm_by_layer": [0.5, 1.0],
        "time/compute": 0.09, "time/checkpoint": 0.03, "time/evaluation": 2.0, "time/compile": 7.5,
    }  # fmt: skip
    captions = (
        "beside that of the next token", "Norm of the update", "Norm of the parameters",
        "Scale of the attention logits", "Tokens per second", "(MFU)", "combine weight",
        "Norm of the router&#39;s bias, mean", "router&#39;s bias, by layer", "dropped, by stage",
        "dropped, by layer", "Seconds of checkpoints, evaluations and compiling",
    )  # fmt: skip
    path = tmp_path / "metrics.jsonl"
    lines = [record(step, **logged) for step in (1, 2, 3)]
    lines.append(record(4, **logged | {"time/compile": 2e-5}))  # only asked whether it is ready
    alarm = {"rule": HOSTILE, "message": f"0.2 is more than {HOSTILE}"}
    lines[1]["alarms"] = [alarm, {"rule": "finite", "message": "loss is nan"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = write_run_report(tmp_path).read_text()
    for caption in captions:
        assert f"{caption}" in html, caption
    assert "<b>25.0 %</b><span>MFU" in html
    assert "<b>22.5</b><span>seconds of compile" in html
    assert "<td>finite</td>\n<td>loss is nan</td>" in html
    assert "0.2 is more than &lt;/pre&gt;" in html
    assert "<script" not in html
    path.write_text(json.dumps(record(1)) + "\n")  # logs none of it
    html = write_run_report(tmp_path).read_text()
    assert "No rule broken." in html
    assert not [caption for caption in captions[:4] if caption in html]


def test_a_long_run_is_drawn_from_some_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["marin.report.metrics"], "_DRAWN", 10)
    lines = [record(step) for step in range(1, 101)]
    lines[33]["alarms"] = [{"rule": "drops", "message": "many"}]
    lines[55]["eval/loss_micro"] = 4.0
    for line in lines[77:]:
        line["seq_len"] = 1024
    for line in lines[::7]:
        line |= {"cells": {"a": line["step"]}, "time/checkpoint": 0.5}
    for line in lines[97:]:
        del line["expert_load"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept = read_metrics(tmp_path)
    steps = [line["step"] for line in kept]
    special = {34, 56, 78, 97, 99, 100}  # 97 has the last loads, 99 the last cells
    assert steps == sorted({*range(1, 101, 10), *special})
    for key in ("assigned", "dropped_receiver", "time/checkpoint"):
        assert sum(line.get(key, 0) for line in kept) == sum(line.get(key, 0) for line in lines)
    assert [line["step"] for line in kept if "cells" in line] == [99]
    by_step = {line["step"]: line for line in kept}
    assert by_step[97]["expert_load"] == [[0.5, 0.5], [0.4, 0.6]]
    assert by_step[91]["expert_load"] == [pytest.approx([0.45, 0.55])]
    assert "rows of 1,024" in write_run_report(tmp_path).read_text()


def test_a_matrix_of_two_layers_has_whole_numbers_on_its_axes() -> None:
    svg = charts.heatmap([[0, 100], [100, 0]], x="expert", y="layer", label="share")
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"0", "1", "100"} <= set(shown)
    assert not any("." in text for text in shown)


def test_metrics_without_a_step_are_one_line(tmp_path: Path) -> None:
    for text in ("", '{"step": 0, "lo'):
        (tmp_path / "metrics.jsonl").write_text(text)
        with pytest.raises(MarinError, match=r"metrics\.jsonl: holds no step yet"):
            write_run_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_missing_or_broken_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match=r"metrics\.jsonl"):
        read_metrics(tmp_path)
    for broken in ("nonsense", "[]", "\x00"):
        (tmp_path / "metrics.jsonl").write_text(f"{{}}\n{broken}\n{{}}\n")
        with pytest.raises(MarinError, match="line 2"):
            read_metrics(tmp_path)
