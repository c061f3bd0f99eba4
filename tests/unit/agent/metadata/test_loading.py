"""What looks at a cloud takes long to load, and agents start in milliseconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
SLOW = ["datetime", "email", "http", "urllib", "hvd_elastic_ext.agent.metadata"]


def loaded(modules: str) -> set[str]:
    """Which of the slow ones come with these."""
    code = f"import sys, {modules}; print(*({set(SLOW)!r} & sys.modules.keys()))"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    return set(done.stdout.split())


def test_an_agent_loads_nothing_of_it_and_one_that_has_it_looked_at_only_what_starts_another() -> None:
    agent = "hvd_elastic_ext.agent"
    assert loaded(f"{agent}.__main__, {agent}.process.member") == set()
    assert loaded(f"{agent}.metadata.watch") == {f"{agent}.metadata"}
    assert "http" in loaded(f"{agent}.metadata.poller")
