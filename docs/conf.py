"""Sphinx's settings: `sphinx-build -W --keep-going -b html docs docs/_build/html`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from raynb import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "raynb"
author = "the raynb developers"
copyright = "the raynb developers, Apache-2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "numpydoc",
    "raynb_reference",
]
exclude_patterns = ["_build", "_ext"]
root_doc = "index"

# Notebooks are shown with the outputs that they are stored with.
nb_execution_mode = "off"
# GitHub's anchors of headings, so that the links between pages work there too.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_typehints = "none"  # numpydoc's sections have the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "furo"
html_title = f"raynb {release}"
html_show_sphinx = False

# %%distributed_train in blocks of Python
suppress_warnings = ["misc.highlighting_failure"]

# They live where users find them; Sphinx reads below its own directory alone.
_shown = HERE / "notebooks"
shutil.rmtree(_shown, ignore_errors=True)
shutil.copytree(HERE.parent / "notebooks", _shown, ignore=shutil.ignore_patterns(".*"))
