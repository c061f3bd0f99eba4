"""``python -m benchmarks``, with processes that import only a part of torch, as in other tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks import cli, jobs
from benchmarks.__main__ import stop
from tests.support.light_torch import FOLDER

whole = jobs.environ


def environ(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment with our folder in ``PYTHONPATH``: measured processes get no path from the user."""
    kept = whole(base, folder)
    return {**kept, "PYTHONPATH": os.pathsep.join([FOLDER, kept["PYTHONPATH"]])}


if __name__ == "__main__":
    jobs.environ = environ
    signal.signal(signal.SIGTERM, stop)
    sys.exit(cli.main(sys.argv[1:]))
