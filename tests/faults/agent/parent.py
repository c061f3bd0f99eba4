"""A launcher for tests: ``parent.py ORDERS COMMAND…`` gives the lines of ORDERS to COMMAND and holds its pipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE)
assert child.stdin is not None
child.stdin.write(Path(sys.argv[1]).read_bytes())
child.stdin.flush()
child.wait()
