"""The import hook of training processes. Only ``sitecustomize.py`` belongs here.

This folder is on ``PYTHONPATH`` of training processes: any other module in it would hide one of the user's.
"""

from __future__ import annotations

import os


def folder() -> str:
    """Return the entry for ``PYTHONPATH`` that gives Python programs the hook."""
    return os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import


def python_path(before: str | None) -> str:
    """Return ``PYTHONPATH`` with the hook first."""
    others = [entry for entry in (before or "").split(os.pathsep) if entry and entry != folder()]
    return os.pathsep.join([folder(), *others])
