"""Real worlds of two processes, one for each library: all checks of ``ranks.py`` run once in each."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from hvd_elastic_ext.core.engines import MPI_INSTALL
from tests.support import ports, tensorflow
from tests.support.processes import RunningProcess, run_process

HERE = Path(__file__).parent
RANKS = 2
LIBRARIES = ("horovod", "torch", "mpi", "tensorflow")
"""The last one is Horovod's for TensorFlow."""
LIMIT_S = 300
"""A slow machine under load needs more than 100 s. Ranks end themselves before, with all their stacks: see ranks.py."""

Saw = list[Any]
"""What each rank saw in one check, by rank."""

OF_TORCH = (
    "wrapped_sgd",
    "wrapped_adamw",
    "wrapped_with_two_passes",
    "wrapped_with_clipping",
    "wrapped_with_a_loss_scaler",
    "accumulating_between_passes_only",
    "shares_by_measured_speed",
)
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
    "dropped_on_one_rank_only",
    "two_doors_to_one_world",
    "what_the_script_begins_is_counted",
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
        *OF_TORCH,
        "reset_joins_the_next_world",
        "stock_handle_takes_anothers_result",
        "losing_a_peer_with_much_under_way",
    ),
    "torch": (*OF_TORCH, *NOT_HOROVOD, "shares_by_measured_speed_under_ddp", "leaving_does_not_wait_for_living_peers"),
    "mpi": (*OF_TORCH, *NOT_HOROVOD, "reset_joins_the_next_world"),
    "tensorflow": (
        "operations_that_do_not_fit",
        "an_error_of_another_kind",
        "reset_joins_the_next_world",
        "losing_a_peer_that_others_wait_for",
    ),
}


class World(NamedTuple):
    """What a world's processes (one for each rank, or the launcher) left."""

    saw: dict[str, Saw]
    codes: list[int]
    output: str


def run(library: str, directory: Path, *checks: str, ranks: int = RANKS) -> World:
    """Run checks in a new world."""
    with contextlib.ExitStack() as stack:
        processes: list[RunningProcess] = []
        for command, env in _launches(library, ranks):
            argv = [*command, HERE / "ranks.py", library, directory, *checks]
            processes.append(stack.enter_context(run_process(argv, env=env, orderly=True)))
        codes = []
        for number, process in enumerate(processes):
            codes.append(process.wait(LIMIT_S))
            (directory / f"ended.{number}").touch()
        output = "".join(process.output for process in processes)
    files = {check: [directory / f"{check}.{rank}.json" for rank in range(ranks)] for check in checks}
    saw = {
        check: [json.loads(path.read_text()) if path.exists() else None for path in paths]
        for check, paths in files.items()
    }
    return World(saw, codes, output)


def _launches(library: str, ranks: int) -> list[tuple[list[Any], dict[str, str | None]]]:
    quiet: dict[str, str | None] = {"OMP_NUM_THREADS": "1"}
    if library == "tensorflow":
        quiet |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if library in ("horovod", "tensorflow"):
        horovodrun = Path(sys.executable).with_name("horovodrun")
        return [([horovodrun, "-np", str(ranks), "-H", f"localhost:{ranks}", "--gloo", sys.executable], quiet)]
    if library == "mpi":
        return [(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), sys.executable], quiet)]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(ranks)}
    return [([sys.executable], {**quiet, **place, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(ranks)]


def free_port() -> str:
    return str(ports.free_port())


def without_mpi() -> str | None:
    """The reason why MPI cannot be tested here, if any."""
    if shutil.which("mpirun") is None or find_spec("mpi4py") is None:
        return f"needs MPI: {MPI_INSTALL}"
    return None


def world_of(library: str) -> World:
    """The world of a library in which all its checks ran."""
    world, lacks = _tried(library)
    assert not lacks, lacks
    return world


@cache
def _tried(library: str) -> tuple[World, str]:
    """The same, and what went wrong, if anything: then the world is not made again for each of its tests."""
    checks = EVERYWHERE + LAST[library]
    with TemporaryDirectory(prefix="hvd-test-") as directory:
        world = run(library, Path(directory), *checks)
    missing = [check for check, saw in world.saw.items() if None in saw]
    return world, f"{missing} incomplete\n{world.output}" if missing else ""


@pytest.fixture(params=LIBRARIES)
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "mpi" and (reason := without_mpi()):
        pytest.skip(reason)
    if request.param == "tensorflow" and not tensorflow.is_there():  # the mark is needs_tensorflow elsewhere
        pytest.skip(tensorflow.MISSING)
    return world_of(request.param)


@pytest.fixture
def saw(world: World) -> dict[str, Saw]:
    """What each rank of each library's world saw, by check."""
    return world.saw
