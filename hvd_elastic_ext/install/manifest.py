"""``hvd-elastic manifest``: list the manifests for a cluster, or print one."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.install import files
from hvd_elastic_ext.io.option_parser import Parser

FOLDER = "docker/manifests"


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises :class:`UsageError` for a name that no manifest has."""
    parser = Parser(
        prog="hvd-elastic manifest",
        description="List the manifests for a cluster, or print one: hvd-elastic manifest rbac | kubectl apply -f -",
        epilog="docs/kubernetes.md says when to use which.",
    )
    parser.add_argument("name", nargs="?", help="the manifest to print; all are listed by default")
    wanted = parser.parse_args(argv).name
    there = {file.stem: file for file in sorted(files.find(FOLDER).glob("*.yaml"), key=lambda file: file.stem)}
    if wanted is None:
        from hvd_elastic_ext.io import tables  # to print one needs no rich

        sys.stdout.write(tables.plain(("NAME", "WHAT"), [(name, _what(file)) for name, file in there.items()]))
        return 0
    name = wanted.removesuffix(".yaml")
    if name not in there:
        near = get_close_matches(name, there, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)}"
        raise UsageError(f"there is no manifest {wanted}; {hint}")
    sys.stdout.write(there[name].read_text(encoding="utf-8"))
    return 0


def _what(file: Path) -> str:
    """The first sentence of the comment that a manifest begins with."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"\.(?: |$)", comment, maxsplit=1)[0]
