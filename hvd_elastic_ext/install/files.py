"""Files that come with the package: in a clone at the root of the tree, else below ``share/`` of the environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import hvd_elastic_ext
from hvd_elastic_ext.core.errors import UsageError

SHARE: Final = "share/hvd-elastic-ext"


def find(name: str, *, package: Path | None = None, prefix: Path | None = None) -> Path:
    """Return the place of a file or folder, given its path in a clone. ``package``: the folder of this package,
    ``prefix``: that of the environment (default: both are found). Raises :class:`UsageError` if it exists at neither
    place.
    """
    package = Path(hvd_elastic_ext.__file__).parent if package is None else package
    places = [package.parent / name, (Path(sys.prefix) if prefix is None else prefix) / SHARE / name]
    for place in places:
        if place.exists():
            return place
    raise UsageError(f"{name} is neither at {places[0]} nor at {places[1]}; install hvd-elastic-ext again")
