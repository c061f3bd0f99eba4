"""The page: one text of HTML, two of JavaScript, one of CSS, which lie beside this module; and Bokeh's own JavaScript.

Only files of the package bokeh are read. Importing it would take memory and delay the start of the server.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.dashboard.guard import policy_of_file

FOLDER: Final = Path(__file__).parent / "page"
SCRIPT_TYPE: Final = "text/javascript; charset=utf-8"
TYPES: Final = {
    "page.html": "text/html; charset=utf-8",
    "charts.js": SCRIPT_TYPE,
    "page.js": SCRIPT_TYPE,
    "page.css": "text/css; charset=utf-8",
}
CHARTS: Final = "bokeh"
"""The package with the charts."""
LIBRARY: Final = ("bokeh.min.js", "bokeh-api.min.js")
"""Its files in the order in which a browser loads them for the first chart."""
_STYLE: Final = '<link rel="stylesheet" href="page.css">'
_SCRIPTS: Final = ("charts.js", "page.js")
_META: Final = '<meta name="referrer" content="no-referrer">'


def read(name: str) -> str:
    """Return one of :data:`TYPES`. The page names the version of the library, because a browser caches that file for
    long."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    if name != "page.html":
        return text
    version = importlib.metadata.version(CHARTS)
    for part in LIBRARY:
        text = text.replace(f'data-src="{part}"', f'data-src="{part}?v={version}"')
    return text


def library(name: str) -> Path | None:
    """Return the path of one of :data:`LIBRARY`; None if the package is not installed."""
    spec = importlib.util.find_spec(CHARTS)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "server/static/js" / name
    return file if file.exists() else None


def single_file(data: object) -> str:
    """Return the page as one file, with the ``data`` that a server would send. Without Bokeh it has no charts."""
    html, style = (FOLDER / "page.html").read_text(encoding="utf-8"), read("page.css")
    scripts = {name: read(name) for name in _SCRIPTS}
    parts = {name: "" if (file := library(name)) is None else file.read_text(encoding="utf-8") for name in LIBRARY}
    policy = policy_of_file(scripts=[*scripts.values(), *parts.values()])
    html = html.replace(_META, f'{_META}\n<meta http-equiv="Content-Security-Policy" content="{policy}">')
    html = html.replace(_STYLE, f"<style>{style}</style>")
    for name, text in parts.items():
        html = html.replace(f' data-src="{name}"></script>', f">{text}</script>")
    for name, text in scripts.items():
        html = html.replace(f'<script src="{name}" defer></script>', f"<script>{text}</script>")
    # In a script element of HTML, only "<" is special: without it, no text can end the element.
    embedded = to_text(data, default=str).replace("<", "\\u003c")
    return html.replace("<script>", f'<script type="application/json" id="data">{embedded}</script>\n<script>', 1)
