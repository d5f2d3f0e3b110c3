"""The overview of what raynb can do."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class

import raynb
from raynb.magics import loading
from raynb.magics.help import overview


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    loading.load_ipython_extension(shell)
    yield shell
    loading.unload_ipython_extension(shell)
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


@magics_class
class Other(Magics):
    @line_magic
    def somebody_elses(self, line: str) -> None:
        """Not raynb's."""


def rows(text: str) -> dict[str, str]:
    return dict(re.findall(r"^  (\S+(?: \S+)?) {2,}(.+)$", text, re.MULTILINE))


def test_everything_is_there_with_its_first_line(shell: Any) -> None:
    shell.register_magics(Other(shell))
    shown = rows(overview(shell))
    assert shown["%%distributed_train"].startswith("Train on the workers of a Ray cluster")
    assert "%distributed_train" not in shown and "%config RayNB" in shown
    assert not any("somebody_elses" in name or name == "%cd" for name in shown)
    functions = {f"raynb.{n}" for n in raynb.__all__ if n[0].islower() and "ipython" not in n}
    assert functions == {name for name in shown if name.startswith("raynb.")}
    assert all(shown.values())
    assert shown["raynb.fit"].startswith("trainer.fit(), watched")


def test_commands_of_a_line_magic(shell: Any) -> None:
    parser = argparse.ArgumentParser(prog="raynb")
    parser.add_subparsers().add_parser("runs", help="what runs here")
    assert rows(overview(shell, parser))["%raynb runs"] == "what runs here"
    assert "Commands" not in overview(shell)


def test_it_fits_a_notebooks_output(shell: Any) -> None:
    assert max(map(len, overview(shell).splitlines())) <= 120
