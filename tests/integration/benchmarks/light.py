"""``python -m benchmarks`` with processes that import less of torch, as other tests' do."""

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
    """Measured processes have no ``PYTHONPATH`` of their user's."""
    kept = whole(base, folder)
    return {**kept, "PYTHONPATH": os.pathsep.join([FOLDER, kept["PYTHONPATH"]])}


if __name__ == "__main__":
    jobs.environ = environ
    signal.signal(signal.SIGTERM, stop)
    sys.exit(cli.main(sys.argv[1:]))
