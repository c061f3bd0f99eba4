"""Where a user's processes meet if somebody else has taken their name in /tmp.

Of the standard library, and little of that: the agent loads this, too, and starts in milliseconds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping


def private_home(environ: Mapping[str, str]) -> str | None:
    """The home directory, or its ``.cache``; None where somebody else can make or move folders in it."""
    home = environ.get("HOME", "")
    home = f"{home}/.cache" if os.path.isdir(f"{home}/.cache") else home  # noqa: PTH112 - pathlib takes long to load
    try:
        facts = os.stat(home)  # noqa: PTH116
    except OSError:
        return None
    private = facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o022
    return home if private and home.startswith("/") else None
