"""``python -m benchmarks``."""

import signal
import sys

from benchmarks.cli import main


def stop(*_: object) -> None:
    """Told to end, it ends as with Ctrl-C: jobs first, then the report of what there is."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main(sys.argv[1:]))
