"""Random cells: a worker does with what was captured what the notebook does with all it has."""

from __future__ import annotations

import pytest
from cell_programs import cells, check_cell_program
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from raynb.engine.capture import capture_cell
from raynb.errors import CaptureError
from raynb.worker.program import compile_cell

QUICK = settings(
    max_examples=200,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@seed(6)
@QUICK
@given(cells())
def test_a_worker_does_what_the_notebook_does(cell: tuple[str, dict[str, str]]) -> None:
    check_cell_program(*cell)


@seed(6)
@QUICK
@given(cells(), st.sampled_from(["\r\n", "\r", "\n"]), st.booleans())
def test_line_ends_and_tabs_change_nothing(
    cell: tuple[str, dict[str, str]], newline: str, tabs: bool
) -> None:
    source, kinds = cell
    other = source.replace("    ", "\t") if tabs else source
    first, second = (_captured(text, kinds) for text in (source, other.replace("\n", newline)))
    assert first == second


def _captured(source: str, kinds: dict[str, str]) -> object:
    from cell_programs import notebook

    try:
        capture = capture_cell(
            source, filename="<c>", label="Cell In[1]", namespace=notebook(kinds)
        )
    except SyntaxError as error:
        return "SyntaxError", error.lineno
    except CaptureError as error:
        return str(error)
    return capture.table, capture.program.form, capture.program.imports


MAGICS = ("!ls -l", "%time x", "%%bash", "x?", "?x", "x = !ls", "x = %pwd", "!!ls")


@seed(6)
@QUICK
@given(cells(), st.sampled_from(MAGICS), st.data())
def test_ipython_lines_are_one_clear_error(
    cell: tuple[str, dict[str, str]], magic: str, data: st.DataObject
) -> None:
    lines = cell[0].split("\n")
    place = data.draw(st.integers(0, len(lines)))
    before = lines[place] if place < len(lines) else ""
    indent = before[: len(before) - len(before.lstrip())]
    source = "\n".join([*lines[:place], indent + magic, *lines[place:]])
    with pytest.raises((CaptureError, SyntaxError)) as raised:
        capture_cell(source, filename="<c>", label="Cell In[1]", namespace={}, first_line=1)
    if isinstance(raised.value, CaptureError):
        assert "IPython syntax" in str(raised.value) and magic in str(raised.value)
    else:
        # Only where Python finds fault with a line before it.
        assert (raised.value.lineno or 0) <= place + 1


@seed(6)
@QUICK
@given(st.text(max_size=200))
def test_any_text_is_captured_or_one_error(text: str) -> None:
    try:
        capture_cell(text, filename="<c>", label="Cell In[1]", namespace={})
    except (CaptureError, SyntaxError):
        return
    compile_cell(text.replace("\r\n", "\n").replace("\r", "\n"), "<c>")
