"""The commands of the first hour mean what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/first-hour.md"
RUN = "env/bin/hvd-elastic run --adopt --hosts-file hosts"


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("/home/me/env/bin/python3 pytorch_mnist_elastic.py --epochs 40", True),
        ("/home/me/.venv/bin/python pytorch_mnist_elastic.py", True),
        ("python3.11 pytorch_mnist_elastic.py", True),
        (f"/home/me/env/bin/python3 {RUN} pytorch_mnist_elastic.py --epochs 40", False),
        (f"/home/me/env/bin/python3 {RUN} python3 pytorch_mnist_elastic.py", False),
        ("/bin/sh -c python3 pytorch_mnist_elastic.py", False),
    ],
)
def test_the_pattern_that_names_a_worker_to_kill_is_that_of_workers_only(command: str, found: bool) -> None:
    (pattern,) = re.findall(r"pgrep -n -f '([^']+)'", PAGE.read_text(encoding="utf-8"))
    assert bool(re.search(pattern, command)) is found
