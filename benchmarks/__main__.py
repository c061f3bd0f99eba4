"""``python -m benchmarks``."""

import signal
import sys

from benchmarks.cli import main


def stop(*_: object) -> None:
    """On SIGTERM, end as with Ctrl-C: first the jobs, then the report."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main(sys.argv[1:]))
