"""``python -m benchmarks``."""

import signal
import sys

from benchmarks.cli import main

if __name__ == "__main__":
    # Told to end, it ends as with Ctrl-C: jobs first, then the report of what there is.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.exit(main(sys.argv[1:]))
