"""Real Horovod worlds: two processes on this machine, once for the stock State and once for ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest

from tests.support.processes import run_process

HERE = Path(__file__).parent
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
RANKS = 2

Saw = list[dict[str, Any]]
"""What each rank saw in one check, by rank."""

SHARED = (
    "newcomer_falls_back_to_what_was_synced",
    "sync_sends_weights_with_their_own_counters",
    "newcomer_gets_the_weights_adamw",
    "newcomer_gets_the_weights_sgd",
    "newcomer_keeps_its_own_scheduler",
    "removal_does_not_skip_the_sync",
    "notice_during_the_new_worlds_forming_is_kept",
    "notices_of_one_second_are_two_notices",
    "notice_to_another_rank_counts",
    # From here on the stock State leaves its world in a worse shape each time.
    "interrupted_accumulation_is_forgotten_everywhere",
    "any_kind_of_tensor_is_synced",
    "unused_parameters_do_not_stall",  # the stock State never returns from it
)
OURS_ONLY = (
    "fingerprints_agree_after_sync",
    "steps_of_the_root_count_for_the_newcomer",
    "different_models_are_named",  # ends the world, so it comes last
)


def run_world(flavour: str, directory: Path, checks: tuple[str, ...]) -> dict[str, Saw]:
    command = [HOROVODRUN, "-np", str(RANKS), "-H", f"localhost:{RANKS}", "--gloo"]
    command += [sys.executable, HERE / "world.py", flavour, directory, *checks]
    with run_process(command) as process:
        process.wait(timeout=100)
    seen = {}
    for name in checks:
        files = [directory / f"{name}.{rank}.json" for rank in range(RANKS)]
        missing = [file.name for file in files if not file.exists()]
        assert not missing, f"{missing} were not written\n{process.output}"
        seen[name] = [json.loads(file.read_text()) for file in files]
    return seen


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saw]:
    """What the ranks of a world with our State saw, by check."""
    return run_world("ours", tmp_path_factory.mktemp("ours"), SHARED + OURS_ONLY)


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saw]:
    """The same for the stock State."""
    return run_world("stock", tmp_path_factory.mktemp("stock"), SHARED)


@pytest.fixture(scope="session")
def alone() -> Iterator[None]:
    """Horovod as a world of one, in this process."""
    hvd.init()
    yield
    hvd.shutdown()
