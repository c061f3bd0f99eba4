"""``python -m tests.unit.words --write`` writes ``lines.txt`` again. Without ``--write`` it prints what differs."""

from __future__ import annotations

import sys

from tests.unit.words.snapshot import FILE, differences, now

if sys.argv[1:] == ["--write"]:
    FILE.write_text(now(), encoding="utf-8")
else:
    print(differences(FILE.read_text(encoding="utf-8"), now()))
