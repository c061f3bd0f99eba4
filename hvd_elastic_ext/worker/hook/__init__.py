"""The import hook of training processes. Belongs here: ``sitecustomize.py``, and nothing else that can be imported.

The folder stands on ``PYTHONPATH`` of training processes: any further module in it would hide one of the user's.
"""

from __future__ import annotations

import os


def folder() -> str:
    """What to put on ``PYTHONPATH`` so that Python programs started below find the hook."""
    return os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import


def python_path(before: str | None) -> str:
    """``PYTHONPATH`` with the hook in front of what it was before."""
    others = [entry for entry in (before or "").split(os.pathsep) if entry and entry != folder()]
    return os.pathsep.join([folder(), *others])
