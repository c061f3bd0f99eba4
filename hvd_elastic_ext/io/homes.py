"""A private folder of the user, in case another user already uses the name in /tmp.

It imports little of the standard library, and nothing else: the agent loads this, too, and starts in milliseconds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping


def private_home(environ: Mapping[str, str]) -> str | None:
    """Return the home directory, or its ``.cache``; None if other users can create or move folders there."""
    home = environ.get("HOME", "")
    home = f"{home}/.cache" if os.path.isdir(f"{home}/.cache") else home  # noqa: PTH112 - pathlib takes long to load
    return home if is_private(home) else None


def is_private(folder: str) -> bool:
    """Whether no other user can create or move anything there."""
    try:
        facts = os.stat(folder)  # noqa: PTH116
    except OSError:
        return False
    return folder.startswith("/") and facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o022
