"""The static page of a run, as self-contained HTML, as plain text and as a mime bundle."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Sequence
from html import escape

from raynb.results.chart import chart_alt, chart_png
from raynb.results.hints import hints_html, hints_text
from raynb.results.page import (
    MAX_SOURCE,
    OPEN_WORKERS,
    Page,
    Table,
    best_line,
    capture_table,
    capture_title,
    checkpoint_table,
    data_line,
    dropped_line,
    environment_table,
    error_box,
    event_rows,
    head_facts,
    load_lines,
    metric_table,
    note_text,
    option_rows,
    shown_checkpoints,
    state_of,
    stored_at,
    versions_line,
    worker_table,
)
from raynb.results.text import clean_line, cut_middle, format_value, number, plural
from raynb.results.tune.live import is_search, search_words
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.units import human_seconds

#: A page's HTML never gets longer, in bytes, the chart included.
MAX_HTML = 200_000
# Bytes of a section before its rows are cut: text grows by escaping, so the parts' bounds in
# characters are not enough.
_MAX_SECTION = 14_000
_MAX_PRE = 30_000
_MAX_SOURCE = 8_000
_MAX_CHART = 60_000
_DROPPED_FIRST = (
    "events", "source", "environment", "captured names", "options", "checkpoints", "workers",
    "hints", "chart",
)  # fmt: skip

# Only inline styles survive GitHub and nbconvert, and no colour may rely on the page's: the text
# inherits its colour, lines and fills are see-through.
MUTED = "opacity:.72"
_LINE = "1px solid rgba(128,128,128,.32)"
_MONO = (
    "font-family:var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace);font-size:12px"
)
_BOX = (
    "max-width:800px;box-sizing:border-box;padding:10px 14px 8px;border:1px solid "
    "rgba(128,128,128,.32);border-radius:6px;text-align:left;overflow-wrap:anywhere;"
    "font:13px/1.45 var(--jp-ui-font-family,system-ui,-apple-system,'Segoe UI',sans-serif);"
    "font-variant-numeric:tabular-nums"
)
_TONES = {
    "good": "46,160,90",
    "bad": "214,60,48",
    "busy": "200,140,20",
    "idle": "128,128,128",
}


def render_html(page: Page, png: bytes | None = None) -> str:
    """Render a page as one HTML fragment: inline styles only, everything escaped.

    Parameters
    ----------
    page : Page
    png : bytes, optional
        The chart, embedded as a data URI.

    Returns
    -------
    str
        At most ``MAX_HTML`` bytes of UTF-8; what was cut is counted in the text.
    """
    sections = {
        "head": _head(page),
        "error": error_section(page),
        "hints": hints_html(page.record.get("hints"), page.record.get("started")),
        "chart": _chart(page, png),
        "metrics": _metrics(page),
        "workers": _workers(page),
        "checkpoints": _checkpoints(page),
        "captured names": folded(capture_title(page), table_section(capture_table(page))),
        "options": folded("all options", options_section(page)),
        "environment": folded("environment", table_section(environment_table(page))),
        "source": folded("source of the cell", source_section(page)),
        "events": _events(page),
        "foot": foot(page),
    }
    left_out: list[str] = []
    html = wrap(sections.values())
    for name in _DROPPED_FIRST:
        if len(html.encode()) <= MAX_HTML:
            break
        # Each section is bounded; only a page with all of them at their bounds gets here.
        if sections[name]:
            sections[name] = ""
            left_out.append(name)
            told = paragraph(f"left out, the page would be too large: {', '.join(left_out)}", MUTED)
            html = wrap([*sections.values(), told])
    return html


def wrap(sections: Iterable[str]) -> str:
    return f'<div style="{_BOX}">{"".join(sections)}</div>'


def paragraph(text: str, style: str = "") -> str:
    """One paragraph of untrusted text; nothing for an empty one."""
    if not text:
        return ""
    return f'<p style="margin:4px 0;{style}">{escape(text).replace(chr(10), "<br>")}</p>'


def pill(state: object) -> str:
    icon, word, tone = state_of(state)
    rgb = _TONES[tone]
    return (
        f'<span style="display:inline-block;padding:0 8px;border-radius:10px;font-weight:600;'
        f'background:rgba({rgb},.18);border:1px solid rgba({rgb},.65)">'
        f'<span aria-hidden="true">{icon}</span> {escape(word)}</span>'
    )


def _head(page: Page) -> str:
    name = clean_line(page.record.get("name") or "run", 120)
    best = best_line(page)
    head = (
        f'<div style="margin:0 0 2px">{pill(page.record.get("state"))} '
        f'<b style="font-size:15px;margin-left:4px">{escape(name)}</b></div>'
    )
    facts = " · ".join(head_facts(page))
    return (
        head
        + paragraph(facts, MUTED)
        + _changed_options(page)
        + (f'<p style="margin:4px 0">best {escape(best)}</p>' if best else "")
        + paragraph(note_text(page))
        + paragraph(dropped_line(page), "font-weight:600")
    )


def error_section(page: Page) -> str:
    error = error_box(page)
    if error is None:
        return ""
    place = (
        f'<pre style="{_PRE_STYLE};{_MONO};font-weight:600">{escape(error.place)}</pre>'
        if error.place
        else ""
    )
    text = (
        f'<details style="margin:4px 0 0"><summary style="cursor:pointer">traceback</summary>'
        f'<pre style="{_PRE_STYLE};{_MONO};max-height:360px;overflow:auto">'
        f"{_escaped(error.text, _MAX_PRE)}</pre></details>"
        if error.text
        else ""
    )
    rgb = _TONES["bad"]
    return (
        f'<div style="margin:8px 0;padding:6px 10px;border-left:3px solid rgba({rgb},.9);'
        f'background:rgba({rgb},.09)"><b>{escape(error.title)}</b>{place}{text}</div>'
    )


_PRE_STYLE = (
    "margin:4px 0 0;padding:0;background:transparent;color:inherit;border:0;"
    "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.4"
)


def _escaped(text: str, limit: int) -> str:
    """Escaped text of at most ``limit`` bytes; its beginning is cut where it is more."""
    html = escape(text)
    size = len(html.encode())
    if size <= limit:
        return html
    # Bytes a character on average tell how much to keep; the worst case shortens once more.
    kept = text[-max(1, int(len(text) * limit / size * 0.95)) :]
    while len(escape(kept).encode()) > limit:
        kept = kept[len(kept) // 4 + 1 :]
    return f"… {len(text) - len(kept):,} characters cut …\n{escape(kept)}"


def _chart(page: Page, png: bytes | None) -> str:
    metric = page.metric
    if png is None or metric is None:
        return ""
    data = base64.b64encode(png).decode()
    if len(data) > _MAX_CHART * 4 // 3:
        return paragraph("The chart is too large for this page.", MUTED)
    alt = escape(chart_alt(page.curves, metric))
    return place(page.live, "curves", picture(data, alt))


def picture(data: str, alt: str) -> str:
    """A chart's image, from base64; ``alt`` is escaped already."""
    return (
        f'<img alt="{alt}" src="data:image/png;base64,{data}" width="720" '
        'style="display:block;max-width:100%;height:auto;margin:8px 0;background:#fff;'
        'border-radius:4px">'
    )


def place(live: str, name: str, inner: str = "") -> str:
    """HTML that a live kernel puts controls in the place of; as it is where there is none."""
    return f'<div class="raynb-{live}-{name}">{inner}</div>' if live else inner


# JupyterLab pads, aligns and stripes tables by itself: each cell says its own.
_CELL = "padding:1px 10px 1px 0;border:0;vertical-align:top"


def _row(cells: Sequence[str], table: Table, tag: str, first: str | None = None) -> str:
    """A row of untrusted text; ``first`` is HTML of ours for a cell before the others."""
    parts = [] if first is None else [f'<{tag} style="{_CELL}">{first}</{tag}>']
    for column, text in enumerate(cells):
        right = column in table.numeric
        style = f"{_CELL};text-align:{'right' if right else 'left'}"
        if tag == "th":
            style += f";font-weight:600;{MUTED}"
        # Numbers and short words stay on one line; a long text may break.
        if right or len(text) <= 24:
            style += ";white-space:nowrap"
        scope = ' scope="col"' if tag == "th" else ""
        parts.append(f'<{tag}{scope} style="{style}">{escape(text)}</{tag}>')
    return f'<tr style="background:transparent">{"".join(parts)}</tr>'


def table_section(
    table: Table | None, limit: int = _MAX_SECTION, first: Sequence[str] | None = None
) -> str:
    """A table whose rows stop at ``limit`` bytes, with the count of what was cut."""
    if table is None:
        return ""
    rows: list[str] = []
    size = 0
    for k, row in enumerate(table.rows):
        html = _row(row, table, "td", first[k] if first else None)
        size += len(html.encode())
        if size > limit:
            break
        rows.append(html)
    short = len(table.rows) - len(rows)
    cut = " · ".join(
        part for part in (f"{plural(short, 'more row')} left out here" if short else "", table.cut)
        if part
    )  # fmt: skip
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;border:0;margin:6px 0;'
        f'font-size:12px"><thead style="border:0;border-bottom:{_LINE}">'
        f"{_row(table.heads, table, 'th', '' if first else None)}</thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{paragraph(cut, MUTED)}"
    )


def folded(title: str, inner: str) -> str:
    """A section that opens on a click; nothing when it has no content."""
    if not inner:
        return ""
    return (
        f'<details style="margin:4px 0"><summary style="cursor:pointer">{escape(title)}</summary>'
        f'<div style="padding-left:14px">{inner}</div></details>'
    )


def _metrics(page: Page) -> str:
    table = metric_table(page)
    if table is None:
        return paragraph("No metrics to show.", MUTED)
    return table_section(table)


def _workers(page: Page) -> str:
    table = worker_table(page)
    html = paragraph(data_line(page), MUTED)
    if table is None:
        return html
    # More room than for another section: this one has the most rows of numbers.
    if len(table.rows) <= OPEN_WORKERS:
        return table_section(table, 2 * _MAX_SECTION) + html
    first = Table(table.heads, table.rows[:OPEN_WORKERS], "", table.numeric)
    rest = Table(table.heads, table.rows[OPEN_WORKERS:], table.cut, table.numeric)
    return (
        table_section(first, 2 * _MAX_SECTION)
        + folded(plural(len(rest.rows), "more worker"), table_section(rest, 4 * _MAX_SECTION))
        + html
    )


def _checkpoints(page: Page) -> str:
    table = checkpoint_table(page)
    if table is None:
        return ""
    rows = shown_checkpoints(page)
    # Before the long names, where they are seen on a narrow page too.
    buttons = [place(page.live, f"load-{row.index}") for row in rows] if page.live else None
    return (
        f'<div style="margin:8px 0;padding-top:4px;border-top:{_LINE}">'
        f"<b>Checkpoints</b>{table_section(table, first=buttons)}"
        f"{place(page.live, 'load')}{_load_code(page)}</div>"
    )


def _load_code(page: Page) -> str:
    """The lines that load the checkpoints: one open, the others folded."""
    lines = [f"# {what}\n{code}" for code, what in load_lines(page)]
    shown = code_section("import raynb  " + lines[0])
    size = 0
    kept: list[str] = []
    for line in lines[1:]:
        size += len(escape(line).encode())
        if size > _MAX_SECTION // 2:
            kept.append(f"# {plural(len(lines) - 1 - len(kept), 'more line')} left out here")
            break
        kept.append(line)
    return shown + folded("load another", code_section("\n".join(kept)) if kept else "")


def code_section(text: str) -> str:
    return (
        f'<pre style="{_PRE_STYLE};{_MONO};font-size:11px;padding:4px 8px;border-radius:4px;'
        f'background:rgba(128,128,128,.1)">{escape(text)}</pre>'
    )


def _changed_options(page: Page) -> str:
    """The options that differ from the defaults, in one line below the facts."""
    changed, _ = option_rows(page)
    parts: list[str] = []
    size = 0
    for name, value in changed:
        html = f'<span style="{MUTED}">{escape(name)}</span>&nbsp;{escape(value)}'
        size += len(html.encode())
        if size > _MAX_SECTION // 2:
            parts.append(f"{plural(len(changed) - len(parts), 'more option')} left out here")
            break
        parts.append(html)
    return f'<p style="margin:4px 0">{" · ".join(parts)}</p>' if parts else ""


def options_section(page: Page) -> str:
    changed, same = option_rows(page)
    rows = [(name, value, "") for name, value in changed]
    rows += [(name, value, "default") for name, value in same]
    return table_section(Table(("option", "value", ""), rows)) if rows else ""


def source_section(page: Page) -> str:
    source = page.record.get("source")
    if not isinstance(source, str) or not source:
        return ""
    text = _escaped(cut_middle(source, MAX_SOURCE), _MAX_SOURCE)
    return f'<pre style="{_PRE_STYLE};{_MONO}">{text}</pre>'


def _events(page: Page) -> str:
    rows, cut = event_rows(page)
    if not rows:
        return ""
    return folded(
        f"{plural(len(rows), 'event')}",
        table_section(Table(("after", "level", "event"), rows, cut)),
    )


def foot(page: Page) -> str:
    versions = versions_line(page)
    return (
        f'<div style="margin:8px 0 0;padding-top:4px;border-top:{_LINE};font-size:12px">'
        f"{paragraph('stored in ' + stored_at(page), MUTED)}{paragraph(versions, MUTED)}</div>"
    )


# -- plain text ----------------------------------------------------------------------------------


def render_text(page: Page) -> str:
    """Render a page as compact plain text, for a terminal or a cell without HTML."""
    icon, word, _ = state_of(page.record.get("state"))
    name = clean_line(page.record.get("name") or "run", 120)
    lines = [f"{icon} {word} · {name} · {' · '.join(head_facts(page))}"]
    best = best_line(page)
    lines += [f"best {best}"] if best else []
    lines += [line for line in (note_text(page), dropped_line(page)) if line]
    error = error_box(page)
    if error is not None:
        lines += ["", error.title]
        lines += [f"  {error.place}"] if error.place else []
        lines += [f"  | {line}" for line in error.text.splitlines()[-40:]]
    lines += hints_text(page.record.get("hints"), page.record.get("started"))
    lines += text_block("", metric_table(page), OPEN_WORKERS)
    lines += text_block("", worker_table(page), OPEN_WORKERS)
    data = data_line(page)
    lines += [data] if data else []
    if (checkpoints := checkpoint_table(page)) is not None:
        lines += text_block("checkpoints", checkpoints, len(checkpoints.rows))
        lines += ["", *(f"  {code}  # {what}" for code, what in load_lines(page)[:1])]
    changed, _ = option_rows(page)
    if changed:
        lines += ["", "options: " + ", ".join(f"{key} = {value}" for key, value in changed)]
    if capture := capture_table(page):
        lines.append(
            f"{capture_title(page)}: " + ", ".join(f"{row[0]} ({row[1]})" for row in capture.rows)
        )
    lines.append(f"stored in {stored_at(page)}")
    if versions := versions_line(page):
        lines.append(versions)
    return "\n".join(lines)


def text_block(title: str, table: Table | None, most: int) -> list[str]:
    if table is None:
        return []
    rows = [table.heads, *table.rows[:most]]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["", title] if title else [""]
    for row in rows:
        cells = [
            cell.rjust(width) if k in table.numeric else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    more = len(table.rows) - most
    notes = [f"{more:,} more rows"] if more > 0 else []
    notes += [table.cut] if table.cut else []
    return lines + [f"  … {note}" for note in notes]


# -- tables alone --------------------------------------------------------------------------------


def render_table(title: str, table: Table) -> str:
    """A table with a head line as HTML; everything escaped."""
    return f"<b>{escape(title)}</b>{table_section(table, MAX_HTML)}"


def boxed_table(title: str, table: Table, live: str = "") -> str:
    """:func:`render_table` as one fragment of a page."""
    return wrap([place(live, "table", render_table(title, table))])


def text_table(title: str, table: Table) -> str:
    """The same as plain text."""
    return "\n".join([title, *text_block("", table, len(table.rows))[1:]])


def comparison_bundle(
    title: str,
    summary: Table,
    options: Table,
    diff: str,
    png: bytes | None,
    metric: str | None,
    note: str = "",
    live: str = "",
) -> dict[str, str]:
    """Several runs as a mime bundle: chart, how each ended, in what they differ."""
    same = "The runs have the same options."
    parts = [f"<b>{escape(title)}</b>", paragraph(note, MUTED)]
    if png is not None:
        alt = escape(f"Chart of {clean_line(metric, 80)}, a line a run")
        parts.append(place(live, "curves", picture(base64.b64encode(png).decode(), alt)))
    parts += [
        table_section(summary, 2 * _MAX_SECTION),
        f'<div style="margin:8px 0 0;padding-top:4px;border-top:{_LINE}"><b>Differing options</b>'
        + (table_section(options, 4 * _MAX_SECTION) if options.rows else paragraph(same, MUTED))
        + "</div>",
        folded("difference of the code", code_section(diff[:_MAX_PRE]) if diff else ""),
    ]
    text = [text_table(title, summary), "", text_table("differing options", options)]
    if not options.rows:
        text[-1] = same
    out = {"text/plain": "\n".join(text), "text/html": wrap(parts)}
    if png is not None:
        out["image/png"] = base64.b64encode(png).decode()
    return out


# -- bundles -------------------------------------------------------------------------------------


def bundle(page: Page) -> dict[str, str]:
    """The page as a mime bundle: plain text, HTML and, where there are metrics, the chart.

    Returns
    -------
    dict of str to str
        ``text/plain``, ``text/html`` and perhaps ``image/png`` in base64.
    """
    png = None
    if page.metric is not None:
        try:
            png = chart_png(page.curves, page.metric, mode=page.mode_of(page.metric))
        except Exception as error:
            # A picture must not take the numbers away.
            told = f"The chart can't be drawn: {type(error).__name__}: {error}"
            page.note = "\n".join(part for part in (page.note, told) if part)
    out = {"text/plain": render_text(page), "text/html": render_html(page, png)}
    if png is not None:
        out["image/png"] = base64.b64encode(png).decode()
    return out


def running_html(mirror: Mirror) -> str:
    """One line on a run that goes on, for a page that can't show the live panel.

    Parameters
    ----------
    mirror : Mirror
        The live picture.
    """
    run = mirror.run
    facts = []
    started = number(run.get("started"))
    if started is not None:
        now = number(run.get("now")) or time.time()
        facts.append(human_seconds(max(0.0, now - started)))
    n = number(run.get("world_size"))
    facts += [plural(int(n), "worker")] if n is not None else []
    metrics = mirror.metrics()
    if is_search(run):
        facts += search_words(run)
    elif metrics:
        values = list(mirror.latest(metrics[0]).items())[:4]
        shown = " / ".join(format_value(value) for _, value in sorted(values))
        facts.append(f"{clean_line(metrics[0], 40)} {shown}")
    message = clean_line(run.get("message") or "", 300)
    name = clean_line(run.get("name") or "run", 120)
    return wrap(
        [
            f'<div>{pill(run.get("state"))} <b style="margin-left:4px">{escape(name)}</b> '
            f'<span style="{MUTED}">{escape(" · ".join(facts))}</span></div>',
            paragraph(message),
            paragraph(
                "This page is not live: the run's record appears here when the run ends.", MUTED
            ),
        ]
    )
