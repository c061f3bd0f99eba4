"""The program for ``--scale-with exec:`` that adds and removes hosts of the demo's job that chooses its size."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import parse_hosts_text, render_hosts_text
from hvd_elastic_ext.io.replaced_file import replace


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``FILE NAME...``: write the hosts file for the launcher's request; all hosts that there are have these names."""
    file, *names = argv
    path, leaving = Path(file), environ["HVD_ELASTIC_LEAVING"].split(",")
    before = parse_hosts_text(path.read_text(), where=file).names
    hosts = chosen(before, names, int(environ["HVD_ELASTIC_HOSTS"]), leaving)
    replace(path, render_hosts_text(HostSet.of(dict.fromkeys(hosts, 1))))
    return 0


def chosen(before: Sequence[str], names: Sequence[str], wanted: int, leaving: Sequence[str]) -> list[str]:
    """Return the hosts that stay, then new ones."""
    stay = [name for name in before if name not in leaving]
    return [*stay, *(name for name in names if name not in (*stay, *leaving))][:wanted]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
