"""Reads the templates of jobs from ``docker/manifests``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from hvd_elastic_ext.install import files
from hvd_elastic_ext.io.config_file import documents

FOLDER: Final = "docker/manifests"


@functools.cache
def read(name: str) -> Sequence[dict[str, Any]]:
    """The objects of one manifest; not to be changed."""
    return documents((files.find(FOLDER) / f"{name}.yaml").read_text(encoding="utf-8"), where=f"{name}.yaml")
