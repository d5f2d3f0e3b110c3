"""What stands in for a slow import in Ray's processes behaves as the real package does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from raynb._ray.cluster import LAZY

pytest.importorskip("rfc3987_syntax")


def python(code: str, *, lazy: bool = True) -> str:
    env = {**os.environ, **({"PYTHONPATH": LAZY} if lazy else {})}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_ray_compiles_no_grammar() -> None:
    code = "import ray, sys; print('rfc3987_syntax.syntax_helpers' in sys.modules)"
    assert python(code, lazy=False) == "True", "then this stand-in is needed no more"
    assert python(code) == "False"


@pytest.mark.parametrize(
    "code",
    [
        "from rfc3987_syntax import is_valid_syntax as f; print(f('iri', 'a:b'), f('iri', ''))",
        "import rfc3987_syntax as r; print(r.is_valid_syntax_iri('http://a/b'))",
        "import rfc3987_syntax.syntax_helpers as h; print(h.is_valid_syntax('iri', 'http://a/b'))",
        "import jsonschema as j; c = j.FormatChecker(); print(c.conforms('http://a/b', 'iri'),"
        " c.conforms('no iri at all', 'iri'))",
    ],
)
def test_it_answers_like_the_real_one(code: str) -> None:
    assert python(code) == python(code, lazy=False)
