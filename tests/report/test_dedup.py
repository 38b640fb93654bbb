"""The page on a deduplication: texts escaped, differences marked, an alarm where too much went."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from marin.datakit.dedup import dedup
from marin.report.dedup import (
    alarms,
    largest_clusters,
    mark_differences,
    write_dedup_report,
)


def test_differences_are_marked_and_texts_escaped() -> None:
    left, right = mark_differences("one <b>two</b> three", "one <b>2</b> three four")
    assert left == "one &lt;b&gt;<mark>two</mark>&lt;/b&gt; three"
    assert right == "one &lt;b&gt;<mark>2</mark>&lt;/b&gt; three<mark> four</mark>"


def test_the_page_names_sources_that_lose_too_much(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> " + " ".join(f"w{i}" for i in range(30))
    texts = [evil, evil, evil + " more", "something else entirely"]
    sources = ["<i>copies</i>"] * 3 + ["fine"]
    path = tmp_path / "a.parquet"
    table = pa.table({"id": ["a", "b", "c", "d"], "text": texts, "source": sources})
    pq.write_table(table, path)
    out = dedup([path], tmp_path)
    assert largest_clusters(out, 5) == [("c", 3, 0, 2, 0.968)]
    html = write_dedup_report(out, tmp_path / "report.html").read_text()
    assert "<script>" not in html
    assert "<i>copies" not in html
    assert "Alarm: more than 50% of the documents go from &lt;i&gt;copies&lt;/i&gt;." in html
    assert "<mark> more</mark>" in html


def test_no_alarm_below_the_share() -> None:
    row = {"source": "a", "documents": 10, "removed_exact": 2, "removed_fuzzy": 3}
    assert alarms([row], 0.5) == []
    assert alarms([row], 0.4) == ["a"]
