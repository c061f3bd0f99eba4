"""The page: one text of HTML, one of JavaScript, one of CSS, which lie beside this module."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.dashboard.guard import policy_of_file

FOLDER: Final = Path(__file__).parent / "page"
TYPES: Final = {
    "page.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
}
_STYLE: Final = '<link rel="stylesheet" href="page.css">'
_SCRIPT: Final = '<script src="page.js" defer></script>'
_META: Final = '<meta name="referrer" content="no-referrer">'


def read(name: str) -> str:
    """One of :data:`TYPES`."""
    return (FOLDER / name).read_text(encoding="utf-8")


def in_one(data: object) -> str:
    """The page in one file, with the ``data`` that a server would send."""
    script, style = read("page.js"), read("page.css")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{policy_of_file(script=script, style=style)}">'
    # In a script of HTML "<" alone has a meaning: without it no text can end the element.
    text = to_text(data, default=str).replace("<", "\\u003c")
    return (
        read("page.html")
        .replace(_META, f"{_META}\n{policy}")
        .replace(_STYLE, f"<style>{style}</style>")
        .replace(_SCRIPT, f'<script type="application/json" id="data">{text}</script>\n<script>{script}</script>')
    )
