"""The static page: nothing untrusted gets through, nothing unknown reads as a number."""

from __future__ import annotations

import base64
import io
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from raynb.engine.spec import RunSpec
from raynb.results import chart, static
from raynb.results.checkpoints import CheckpointRow, Files
from raynb.results.curves import Curve
from raynb.results.page import Page, worker_table
from raynb.results.text import clean, cut_middle, format_value
from raynb.telemetry.digest import Cursor, Digest
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.rows import new_worker

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>\'"&\x1b[31m\x00\u202e\ud800'
START = 1_790_000_000.0


def curve(
    rank: int = 0, values: Any = (3.0, 2.0, 1.0), metric: str = "loss", attempt: int = 0
) -> Curve:
    ys = np.asarray(values, dtype=float)
    steps = np.arange(len(ys), dtype=float)
    return Curve(metric, rank, attempt, steps, START + steps, ys)


def worker(rank: int, **more: Any) -> dict[str, Any]:
    return {**new_worker(rank), "status": "finished", "node": "a", **more}


def record(**more: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "state": "finished",
        "message": "",
        "started": START,
        "ended": START + 42,
        "world_size": 2,
        "options": RunSpec(name="demo", num_workers=2, config={"lr": 0.1}).summary(),
        "workers": [worker(0), worker(1)],
        **more,
    }


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def evil(value: Any) -> Any:
    """The same structure with every text in it, keys too, replaced by an attack."""
    if isinstance(value, dict):
        return {EVIL + str(k): evil(v) for k, v in value.items()}
    if isinstance(value, list):
        return [evil(v) for v in value]
    return EVIL if isinstance(value, str) or value is None else value


def evil_page() -> Page:
    content = record(
        error={"title": EVIL, "rank": 1, "text": EVIL, "line": EVIL},
        message=EVIL,
        source=EVIL,
        versions={EVIL: EVIL},
        dropped={EVIL: 3},
        shard_totals={EVIL: 5},
        best_seen={"metric": EVIL, "value": 0.5, "step": 1, "rank": 0},
        capture=[{"name": EVIL, "kind": EVIL, "size": 3, "via": EVIL, "line": 1, "note": EVIL}],
        workers=[{k: EVIL for k in new_worker(0)}, worker(1, node=EVIL, device=EVIL)],
    )
    content["name"] = content["state"] = EVIL
    content["options"] = {**evil(content["options"]), "config": EVIL, "name": EVIL}
    row = CheckpointRow(0, EVIL, EVIL, 3, {EVIL: EVIL}, True, Files(((EVIL, 2),), START))
    return Page(
        content,
        curves=[curve(metric=EVIL), curve(1, metric=EVIL)],
        texts={EVIL: EVIL},
        checkpoints=[row],
        events=[{"t": 1, "level": EVIL, "text": EVIL}],
        note=EVIL,
        path=EVIL,
    )


def test_no_markup_gets_through_from_any_field() -> None:
    bundle = static.bundle(evil_page())
    html = Tags(bundle["text/html"])
    assert html.tags <= {
        "div", "p", "b", "span", "img", "pre", "table", "thead", "tbody", "tr", "th", "td",
        "details", "summary", "br",
    }  # fmt: skip
    assert html.attributes <= {"style", "alt", "src", "width", "scope", "aria-hidden"}
    assert html.words.count("alert(1)") > 25
    for text in bundle.values():
        text.encode()
        assert not re.search("[\x00\x1b\u202e]", text)


def test_a_page_of_wrong_types_still_renders() -> None:
    for junk in (
        {},
        dict.fromkeys(record(), 7),
        dict.fromkeys(record(), None),
        {key: [None, "x", [1]] for key in record()},
        {"workers": "ab", "started": 1e300},
    ):
        page = Page(junk)
        Tags(static.render_html(page))
        assert static.render_text(page)


def test_what_is_unknown_reads_na_and_never_zero() -> None:
    html = Tags(static.render_html(Page(record(started=None, workers=[new_worker(0)])))).words
    assert "duration n/a" in html
    assert worker_table(Page(record(workers=[new_worker(0)]))).rows == [  # type: ignore[union-attr]
        ("0", "starting", "n/a", "n/a", "n/a", "n/a")
    ]
    rows = [CheckpointRow(0, "c", "/c", None, {}, False, None)]
    text = static.render_text(Page(record(), checkpoints=rows)).split("checkpoints")[1]
    assert re.search(r"\[0\]  c +n/a   n/a  n/a  n/a\n", text)


def test_the_state_is_said_in_words_and_the_error_in_full() -> None:
    error = {"title": "ValueError: bad", "rank": 3, "text": "a\nb", "line": "cell 2, line 5: f()"}
    page = Page(record(state="failed", error=error))
    for text in (Tags(static.render_html(page)).words, static.render_text(page)):
        assert "Failed" in text
        assert "rank 3: ValueError: bad" in text
        assert "cell 2, line 5: f()" in text
    assert "<pre" in static.render_html(page)


def test_options_that_differ_come_first() -> None:
    html = Tags(static.render_html(Page(record()))).words
    head, rest = html.split("all options")
    assert 'config\xa0{"lr": 0.1}' in head
    assert "placement_strategy" not in head
    assert "placement_strategy" in rest


def test_dropped_is_told_only_when_something_was() -> None:
    none = {"metrics": 0, "samples": 0, "logs": 0}
    assert "dropped" not in static.render_html(Page(record(dropped=none)))
    assert "1,200 log lines" in static.render_html(Page(record(dropped={**none, "logs": 1200})))


def test_a_logged_nan_is_not_hidden_by_the_mean_or_range() -> None:
    page = Page(record(), curves=[curve(0, [1, 0.5]), curve(1, [1, math.nan])])
    html = Tags(static.render_html(page)).words
    assert re.search(r"loss0\.5NaNNaNNaN2", html)


def test_the_last_attempt_counts() -> None:
    page = Page(record(), curves=[curve(0, [9.0]), curve(1, [8.0]), curve(0, [0.25], attempt=1)])
    assert re.search(r"loss\s+0\.25\s+0\.25\s+0\.25\s+0\.25\s+1\b", static.render_text(page))


def test_html_is_bounded_and_counts_what_it_cut() -> None:
    big = '"' * 3_000
    page = Page(
        record(
            state="failed",
            error={"title": big, "rank": 0, "text": '"' * 1_000_000, "line": big},
            message=big,
            source='"' * 1_000_000,
            workers=[worker(k, node=f"{big}{k}", device=big) for k in range(5_000)],
            capture=[{"name": big, "kind": big, "via": big, "note": big}] * 5_000,
            options={f"{big}{k}": big for k in range(1_000)},
            versions={f"{big}{k}": big for k in range(1_000)},
            dropped={f"{k}{big}": 3 for k in range(1_000)},
            shard_totals={f"{k}{big}": 3 for k in range(1_000)},
        ),
        curves=[curve(metric=f"{big}{k}") for k in range(300)],
        checkpoints=[CheckpointRow(k, big, big, k, {big: 1.0}, False, Files(((big, 1),), START))
                     for k in range(500)],
        events=[{"t": 1, "level": "info", "text": big}] * 5_000,
        note=big,
        path=big,
    )  # fmt: skip
    html = static.render_html(page, b"x" * 60_000)
    assert len(html.encode()) <= static.MAX_HTML
    words = Tags(html).words
    assert "characters cut" in words
    assert "left out" in words
    assert "Failed" in words
    assert len(static.render_text(page)) < 200_000


def test_rows_past_the_bound_are_counted_exactly() -> None:
    rows = [worker(k, status="failed" if k == 90 else "finished") for k in range(100)]
    table = worker_table(Page(record(workers=rows)))
    assert table is not None
    assert len(table.rows) == 64
    assert table.cut == "36 more workers left out here"
    # The one that matters is not among those cut.
    assert table.rows[0][:2] == ("90", "✗ failed")


def test_rows_too_long_for_their_section_are_counted() -> None:
    rows = [worker(k, node=f"{'&' * 40}{k}", device="&" * 60) for k in range(64)]
    html = static.render_html(Page(record(workers=rows), curves=[curve()]))
    shown = html.count("✓ finished")
    assert 16 <= shown < 64
    assert f"{64 - shown} more rows left out here" in html


def test_a_chart_that_breaks_leaves_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> bytes:
        raise RuntimeError("no fonts")

    monkeypatch.setattr(static, "chart_png", broken)
    bundle = static.bundle(Page(record(), curves=[curve()]))
    assert "image/png" not in bundle
    assert "no fonts" in bundle["text/html"]
    assert "loss" in bundle["text/plain"]


def pixels(png: bytes | None) -> Any:
    from PIL import Image

    assert png is not None
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def count(image: Any, rgb: tuple[int, int, int]) -> int:
    return int((np.abs(image - np.array(rgb)).sum(axis=2) < 40).sum())


BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def test_the_chart_has_a_line_a_rank_on_white_at_twice_the_size() -> None:
    png = chart.chart_png([curve(0), curve(1, (1, 2, 3))], "loss")
    image = pixels(png)
    assert image.shape[:2] == (520, 1440)
    assert tuple(image[2, 2]) == (255, 255, 255)
    assert count(image, BLUE) > 500
    assert count(image, ORANGE) > 500


def test_many_ranks_become_a_band_with_the_worst_one() -> None:
    curves = [curve(k, np.linspace(3, 0.1 + 0.01 * k, 50)) for k in range(64)]
    assert chart.worst_rank(curves, "loss") == 63
    assert chart.worst_rank(curves, "loss", "max") == 0
    assert chart.worst_rank([*curves, curve(7, [math.nan])], "loss") == 7
    steps, low, middle, high = chart.band(curves)
    assert steps[-1] == 49
    assert [low[-1], high[-1]] == pytest.approx([0.1, 0.73])
    assert middle[-1] == pytest.approx(0.415)
    image = pixels(chart.chart_png(curves, "loss"))
    assert count(image, BLUE) > 500
    assert count(image, ORANGE) > 300


def test_the_band_takes_ranks_at_different_steps_alike() -> None:
    late = Curve("loss", 1, 0, np.array([5.0]), np.array([0.0]), np.array([9.0]))
    steps, low, middle, high = chart.band([curve(0, [1.0, 1.0]), late])
    assert steps.tolist() == [0, 1, 5]
    assert middle.tolist() == [1, 1, 5]
    assert (low[-1], high[-1]) == (9, 9)


def test_what_is_not_finite_is_marked() -> None:
    values = [1.0, math.nan, math.nan, math.inf, -math.inf, 1.0]
    plain = pixels(chart.chart_png([curve(0, [1.0, 1.0])], "loss"))
    marked = pixels(chart.chart_png([curve(0, values)], "loss"))
    red = (0xB3, 0x26, 0x1E)
    assert count(plain, red) == 0
    assert count(marked, red) > 50
    # Even where no value is a number there is a picture that says so.
    assert count(pixels(chart.chart_png([curve(0, [math.nan] * 3)], "loss")), red) > 50


@pytest.mark.parametrize("metric", ["$\\frac{$", "_hidden", "精度", "a" * 500, "\n$x^2$"])
def test_any_metric_name_can_be_drawn(metric: str, recwarn: pytest.WarningsRecorder) -> None:
    assert chart.chart_png([curve(metric=metric), curve(1, metric=metric)], metric)
    assert not list(recwarn)


@pytest.mark.parametrize("values", [[1e308, -1e308], [5.0], [0.0, 0.0], [1e-320, 2e-320]])
def test_odd_ranges_can_be_drawn(values: list[float]) -> None:
    assert chart.chart_png([curve(values=values)], "loss")


def test_the_chart_is_small_however_long_the_run() -> None:
    noise = np.random.default_rng(0).standard_normal((16, 100_000))
    png = chart.chart_png([curve(k, noise[k] + k) for k in range(16)], "loss")
    assert png is not None
    assert len(png) <= chart.MAX_PNG
    page = Page(record(), curves=[curve(k, noise[k] + k) for k in range(16)])
    assert "data:image/png" in static.bundle(page)["text/html"]


def test_thinning_keeps_the_spikes() -> None:
    ys = np.zeros(100_000)
    ys[77_777], ys[5] = 9.0, -9.0
    kept = chart.thin(ys, 1_000)
    assert len(kept) <= 1_000
    assert {5, 77_777, 0, 99_999} <= set(kept.tolist())


def test_nothing_to_draw_is_no_picture() -> None:
    assert chart.chart_png([], "loss") is None
    assert "image/png" not in static.bundle(Page(record()))


def test_drawing_leaves_pyplot_and_the_users_style_alone() -> None:
    import matplotlib
    import matplotlib.pyplot as plt

    with plt.style.context("dark_background"):
        before = (plt.get_fignums(), dict(matplotlib.rcParams))
        image = pixels(chart.chart_png([curve()], "loss"))
        assert (plt.get_fignums(), dict(matplotlib.rcParams)) == before
    assert tuple(image[2, 2]) == (255, 255, 255)


def test_the_bundle_is_text_and_its_png_is_the_embedded_one() -> None:
    bundle = static.bundle(Page(record(), curves=[curve()]))
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["image/png"] in bundle["text/html"]
    assert 'alt="Chart of loss' in bundle["text/html"]


def mirror_of(**run: Any) -> Mirror:
    digest = Digest("live", world_size=2, state="training", started=START, now=START + 12, **run)
    batch = RecordBatch.of([Record(k, START + k, {"loss": 1 / (k + 1)}) for k in range(4)])
    digest.apply(Batch(0, 0, 0, records=batch))
    digest.event("rank 0 is there")
    mirror = Mirror()
    mirror.apply(digest.since(Cursor()))
    return mirror


def test_a_running_page_says_so() -> None:
    html = static.running_html(mirror_of(message=EVIL))
    words = Tags(html).words
    assert "Training" in words
    assert "12 s" in words
    assert "loss 0.25" in words
    assert "when the run ends" in words
    assert "<script" not in html


def test_a_page_of_the_live_picture() -> None:
    bundle = static.bundle(Page.of_mirror(mirror_of(), note="partial"))
    assert "12 s so far" in bundle["text/plain"]
    assert "partial" in bundle["text/plain"]
    assert "rank 0 is there" in bundle["text/html"]
    assert "image/png" in bundle


def test_text_is_cleaned_and_cut() -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\ud800") == "red link?"
    assert clean("x" * 50, 10) == "x" * 9 + "…"
    cut = cut_middle("a" * 500 + "b" * 500, 100)
    assert cut.startswith("a" * 25)
    assert cut.endswith("b" * 75)
    assert "900 characters cut" in cut

    class Broken:
        def __str__(self) -> str:
            raise ValueError

    assert "Broken" in clean(Broken())


def test_values_read_well() -> None:
    told = [format_value(v) for v in (0.0, -1.5, 1234567.0, 1e9, -math.inf, True, "warm", None)]
    assert told == ["0", "-1.5", "1,234,567", "1.00e+09", "-∞", "True", "warm", "n/a"]
