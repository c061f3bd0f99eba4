"""Agents start in milliseconds: what takes long to load, as what looks at a cloud does, they do not load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
SLOW = {"datetime", "email", "http", "urllib", "dataclasses", "torch", "numpy", "psutil"}
AGENT = "hvd_elastic_ext.agent"
CORE = (
    "call_results",
    "commands",
    "commit_record",
    "connections",
    "json_text",
    "messages",
    "messages.slot_protocol",
    "messages.wire",
    "sizes",
)


def loaded(modules: str) -> set[str]:
    """What comes with these modules."""
    command = [sys.executable, "-S", "-c", f"import sys, {modules}; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    return set(done.stdout.split())


def test_an_agent_loads_nothing_slow_and_one_that_has_its_cloud_looked_at_only_what_starts_another() -> None:
    agent = loaded(f"{AGENT}.__main__, {AGENT}.job")
    assert not agent & (SLOW | {f"{AGENT}.notices.watch", f"{AGENT}.notices.metadata"})
    core = {name for name in agent if name.startswith("hvd_elastic_ext.core.")}
    assert core == {f"hvd_elastic_ext.core.{name}" for name in CORE}
    assert not {name for name in agent if name.startswith("hvd_elastic_ext.checkpoint")}
    assert not loaded(f"{AGENT}.notices.watch") & SLOW
    assert "http" in loaded(f"{AGENT}.notices.poller")
