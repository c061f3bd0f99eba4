"""Real worlds of three processes, one for each library: all checks of ``ranks.py`` run once in each."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.worker.comms.choose import HOW_TO_GET_MPI
from tests.support.processes import RunningProcess, run_process

HERE = Path(__file__).parent
RANKS = 3
LIBRARIES = ("horovod", "torch", "mpi")

Saw = list[Any]
"""What each rank saw in one check, by rank."""

EVERYWHERE = (
    "places",
    "broadcast_from_each_root",
    "broadcast_into_mapped_memory",
    "broadcast_in_pieces",
    "broadcast_of_nothing",
    "broadcast_refuses_what_is_not_flat_bytes",
    "sums_of_every_type",
    "sums_of_odd_shapes",
    "sum_refuses_sparse",
    "maxima",
    "pending_maxima",
    "dropped_maxima_leave_nothing",
    "an_earlier_one_keeps_its_result",
    "two_doors_to_one_world",
    "wrapped_sgd",
    "wrapped_adamw",
    "wrapped_with_two_passes",
    "wrapped_with_clipping",
    "wrapped_with_a_loss_scaler",
    "accumulating_between_passes_only",
)
NOT_HOROVOD = (
    "wrapped_with_a_scheduler_made_first",
    "wrapped_lbfgs",
    "what_is_unused_stays_untouched",
    "small_and_large_gradients_of_several_types",
    "sparse_gradients",
    "wrapped_is_a_real_optimizer",
)
LAST = {
    "horovod": (
        "reset_joins_the_next_world",
        "stock_handle_takes_anothers_result",
        "lost_peer_is_one_kind_of_error",
    ),
    "torch": (
        *NOT_HOROVOD,
        "lost_peer_is_one_kind_of_error",
    ),
    "mpi": (
        *NOT_HOROVOD,
        "reset_joins_the_next_world",
    ),
}


ATTEMPTS = 3
"""Under horovodrun all worlds of a job share one key space: whoever resets first may read where a peer listened in the
world before, and is refused and aborted. That is stock Horovod's, and no matter of these checks."""


@contextlib.contextmanager
def world(
    library: str, directory: Path, checks: tuple[str, ...], *, ranks: int = RANKS
) -> Iterator[list[RunningProcess]]:
    """Start a world; one process for each rank, or the launcher."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(run_process([*command, HERE / "ranks.py", library, directory, *checks], env=env))
            for command, env in launches(library, ranks)
        ]


def launches(library: str, ranks: int) -> list[tuple[list[Any], dict[str, str | None]]]:
    quiet: dict[str, str | None] = {"OMP_NUM_THREADS": "1"}
    if library == "horovod":
        horovodrun = Path(sys.executable).with_name("horovodrun")
        return [([horovodrun, "-np", str(ranks), "-H", f"localhost:{ranks}", "--gloo", sys.executable], quiet)]
    if library == "mpi":
        return [(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), sys.executable], quiet)]
    port = free_port()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    return [([sys.executable], {**quiet, **place, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(ranks)]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def seen(directory: Path, check: str) -> Saw:
    return [json.loads((directory / f"{check}.{rank}.json").read_text()) for rank in range(RANKS)]


def without_mpi() -> str | None:
    """The reason why MPI cannot be tested here, if any."""
    if shutil.which("mpirun") is None or find_spec("mpi4py") is None:
        return f"needs MPI: {HOW_TO_GET_MPI}"
    return None


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Saw]]:
    """Return the results of the ranks of a library's world, by check."""
    known: dict[str, dict[str, Saw]] = {}

    def run(library: str) -> dict[str, Saw]:
        for attempt in range(ATTEMPTS):
            if library in known:
                break
            directory = tmp_path_factory.mktemp(library)
            checks = EVERYWHERE + LAST[library]
            with world(library, directory, checks) as processes:
                for process in processes:
                    process.wait(timeout=100)
                output = "".join(process.output for process in processes)
            missing = [c for c in checks for r in range(RANKS) if not (directory / f"{c}.{r}.json").exists()]
            if missing and attempt < ATTEMPTS - 1 and "Connection refused" in output:
                continue
            assert not missing, f"{missing} were not written\n{output}"
            known[library] = {check: seen(directory, check) for check in checks}
        return known[library]

    return run


@pytest.fixture(params=LIBRARIES)
def saw(request: pytest.FixtureRequest, run_once: Callable[[str], dict[str, Saw]]) -> dict[str, Saw]:
    """What each rank of each library's world saw, by check."""
    if request.param == "mpi" and (reason := without_mpi()):
        pytest.skip(reason)
    return run_once(request.param)
