"""docs/security.md lists every socket that listens."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
LISTENS = re.compile(r"create_server\(|start_unix_server\(|start_server\(|HttpServer\(|listen(?:er|ing)\.listen\(")
MADE_IN = ("hvd_elastic_ext/io/http_server.py",)
"""Where others' ports are made."""


def test_the_table_of_ports_has_each_file_that_opens_one() -> None:
    files = [each for top in ("hvd_elastic_ext", "discover") for each in (ROOT / top).rglob("*.py")]
    found = {str(each.relative_to(ROOT)) for each in files if LISTENS.search(each.read_text(encoding="utf-8"))}
    part = (ROOT / "docs/security.md").read_text(encoding="utf-8").partition("## Ports and sockets\n")[2]
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)`", part.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) == len(set(rows)) > 10
    assert found - {*MADE_IN, "hvd_elastic_ext/demo/page.py"} == {*rows}
