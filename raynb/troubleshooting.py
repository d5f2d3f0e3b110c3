"""The troubleshooting page by topic: what errors point to, also where there is no checkout."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from raynb.errors import TROUBLESHOOTING, OptionError, RaynbError

_PACKAGE = Path(__file__).parent
#: In a wheel, where the build puts it; in a checkout.
_PLACES = (_PACKAGE / "troubleshooting.md", _PACKAGE.parent / TROUBLESHOOTING)


def topics() -> dict[str, str]:
    """The page's sections by their topic, which is their heading, in the page's order.

    Raises
    ------
    RaynbError
        When this installation lacks the page.
    """
    page = next((path for path in _PLACES if path.is_file()), None)
    if page is None:
        raise RaynbError(
            "this installation of raynb lacks its troubleshooting page",
            hint="pip install --force-reinstall --no-deps raynb, or read it in the repository",
        )
    parts = re.split(r"^(#{2,3}) (.+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return {title: _plain(text) for mark, title, text in sections if mark == "###"}


def section(topic: str) -> str:
    """One section, as plain text.

    Raises
    ------
    OptionError
        When there is none of this topic.
    """
    known = topics()
    name = topic.rpartition("#")[2]  # also as errors write it, with the page's name
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise OptionError(
            f"there is no help on {name!r}",
            hint=f"did you mean {near[0]}?" if near else "without a topic, help lists them all",
        )
    return f"{name}\n\n{known[name]}"


def contents() -> str:
    """All topics, each with the messages that it is about."""
    rows = [f"  {topic:<27}{_messages(text)}" for topic, text in topics().items()]
    return "\n".join(["Errors name their topic; help TOPIC shows its section.", "", *rows])


def _messages(text: str) -> str:
    """The start of the messages that a section quotes first."""
    quoted = " ".join(re.findall(r"^> (.*)", text, re.MULTILINE))
    return quoted if len(quoted) <= 66 else quoted[:66].rpartition(" ")[0] + " …"


def _plain(text: str) -> str:
    """Markdown without its links: they lead to pages that may not be there."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).strip()
