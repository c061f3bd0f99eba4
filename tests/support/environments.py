"""Virtual environments with links to the packages of this one, so that nothing is downloaded or copied."""

from __future__ import annotations

import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path


def linked_environment(place: Path, *, wanted: Callable[[str], bool]) -> Path:
    """Make an environment at ``place`` with the ``wanted`` files and folders of this one. Return its Python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(place)
    [site] = place.glob("lib/python3*/site-packages")
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if wanted(each.name):
            (site / each.name).symlink_to(each)
    return place / "bin" / "python"


def environment_without_horovod(place: Path) -> Path:
    """Make an environment with all packages of this one except Horovod. Return its Python."""
    return linked_environment(place, wanted=lambda name: not name.startswith("horovod"))
