"""Runs a command until it succeeds, as users run launchers on spot instances.

python -m benchmarks.scripts.restart_loop COMMAND…
"""

from __future__ import annotations

import subprocess
import sys
import time

PAUSE_S = 1.0


def main() -> None:
    while subprocess.run(sys.argv[1:], check=False).returncode != 0:
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
