"""The present world of this process: which library carries it, and its rank and size.

Our own code joins a world by :func:`init`; a script may have joined one before. Samplers, learning rates and
``elastic.rank()`` look rank and size up at each use, because the world changes.

Another library takes a module beside this one that implements ``Comms``, its row in :data:`LIBRARIES` (with the facts
and the rule by which "auto" takes it), and its kind in ``tests/contract/comms/conftest.py``; a third party also has a
line in ``pyproject.toml``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, cast

from torch import distributed

from hvd_elastic_ext.core.engines import MPI_INSTALL
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.comms import AloneComms, Comms, torch_in_place
from hvd_elastic_ext.worker.comms import torch_distributed as with_torch
from hvd_elastic_ext.worker.process import standby

FOR_TENSORFLOW: Final = stock.FRAMEWORK == "tensorflow"
"""Whether this process trains with TensorFlow, whose gradients only Horovod averages."""
with_horovod: Any
"""The collectives of this process's Horovod."""
if FOR_TENSORFLOW:
    from hvd_elastic_ext.worker.comms import horovod_tensorflow

    with_horovod = horovod_tensorflow
else:
    from hvd_elastic_ext.worker.comms import horovod

    with_horovod = horovod
HorovodComms: Final = with_horovod.HorovodComms

_in_use: Final[list[Comms]] = []
"""The world that our own code has joined, if it has; a list of one."""


def use(comms: Comms | None) -> None:
    """Take rank and size from ``comms``; with None, from the library that is initialised."""
    _in_use[:] = [comms] if comms is not None else []


def comms() -> Comms | None:
    """Return the last argument of :func:`use`, or None."""
    return _in_use[0] if _in_use else None


# --- which library


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """The facts for the decision."""

    no_horovod: str | None = None
    """Why there is no Horovod; None if there is."""
    for_tensorflow: bool = False
    horovod_initialised: bool = False
    torch_initialised: bool = False
    horovod_launched: bool = False
    """Horovod's launcher or ours has set this process's place in the environment."""
    torch_in_place: bool = False
    """The launcher wants worlds of torch that this process enters one after another."""
    torchrun: bool = False
    torch_described: bool = False
    """The environment holds all that ``init_process_group`` needs."""
    mpi_size: int = 0
    """Processes that ``mpirun`` started; 0 if it did not start this one."""
    mpi4py: bool = False


def look(environ: Mapping[str, str]) -> LaunchFacts:
    """Gather the facts of this process."""
    return LaunchFacts(
        no_horovod=stock.WHY_ABSENT,
        for_tensorflow=FOR_TENSORFLOW,
        horovod_initialised=with_horovod.is_initialised(),
        torch_initialised=with_torch.is_initialised(),
        horovod_launched=launched_by_horovod(environ),
        torch_in_place=torch_in_place.is_wanted(environ),
        torchrun="TORCHELASTIC_RUN_ID" in environ,
        torch_described={"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"} <= set(environ),
        mpi_size=mpi_size(environ),
        mpi4py=find_spec("mpi4py") is not None,
    )


class Library(NamedTuple):
    """One library for collectives, as a user may name it."""

    unusable: Callable[[LaunchFacts], str | None]
    """Why it cannot work here, and what to do; None if it may."""
    join: Callable[[], Comms]
    """Joins its world, if this process is in none yet."""


def decide(wanted: str, facts: LaunchFacts) -> str:
    """Return the name of the library, or :data:`NO_LIBRARY`. Raises :class:`UsageError` for one that cannot work here.

    ``wanted`` is a name in :data:`LIBRARIES`, or "auto".
    """
    if wanted == "auto":
        return _auto(facts)
    if wanted not in LIBRARIES:
        *names, last = LIBRARIES
        raise UsageError(f"comms={wanted!r}: no such library; choose {', '.join(['auto', *names])} or {last}")
    problem = LIBRARIES[wanted].unusable(facts)
    if problem is not None:
        raise UsageError(f"comms={wanted!r}: {problem}")
    return wanted


def _auto(facts: LaunchFacts) -> str:
    rules = (
        (facts.for_tensorflow, "horovod"),
        (facts.torch_in_place, "torch"),
        (facts.horovod_initialised, "horovod"),
        (facts.torch_initialised, "torch"),
        (facts.horovod_launched, "horovod"),
        (facts.torchrun, "torch"),
        (facts.mpi_size > 0 and facts.mpi4py, "mpi"),
        (facts.no_horovod is not None, NO_LIBRARY),
    )
    return next((library for holds, library in rules if holds), "horovod")


# --- joining


def init(wanted: str = "auto") -> Comms:
    """Return the world of the chosen library, and make it this process's world. Join it if this process is in none.

    ``wanted``: a name in :data:`LIBRARIES`, or "auto". Raises :class:`UsageError` for a choice that cannot work,
    and for a world of one if the launcher has started more processes.
    """
    name = decide(wanted, look(os.environ))
    standby.current().start_fixed_world()
    comms = _world_of_one() if name == NO_LIBRARY else LIBRARIES[name].join()
    use(comms)
    return comms


def _no_horovod(facts: LaunchFacts) -> str | None:
    return None if facts.no_horovod is None else f"{facts.no_horovod}; {stock.HOW_TO_GET_HOROVOD}"


def _horovod_world() -> Comms:
    if not with_horovod.is_initialised():
        with_horovod.join_world()
    comms = HorovodComms()
    check_world(comms.size(), os.environ)
    return cast(Comms, comms)


def _no_process_group(facts: LaunchFacts) -> str | None:
    if facts.torch_initialised or facts.torch_described or facts.torch_in_place:
        return None
    return (
        "torch.distributed is not initialised and the environment does not say how; "
        "start with torchrun, or call torch.distributed.init_process_group first"
    )


def _torch_world() -> Comms:
    if torch_in_place.is_wanted(os.environ):
        torch_in_place.enter()
        return torch_in_place.InPlaceComms()
    if not with_torch.is_initialised():
        with_torch.join_world()
    return with_torch.TorchDistributedComms()


def _no_mpi4py(facts: LaunchFacts) -> str | None:
    return None if facts.mpi4py else f"mpi4py is not installed; {MPI_INSTALL}"


def _mpi_world() -> Comms:
    try:
        from hvd_elastic_ext.worker.comms import mpi as with_mpi
    except (ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise UsageError(f"MPI cannot be used: {why}; {MPI_INSTALL}") from error
    with_mpi.abort_job_on_error()
    return with_mpi.MPIComms()


def _world_of_one() -> Comms:
    check_world(1, os.environ)
    return AloneComms()


LIBRARIES: Final[Mapping[str, Library]] = {
    "horovod": Library(_no_horovod, _horovod_world),
    "torch": Library(_no_process_group, _torch_world),
    "mpi": Library(_no_mpi4py, _mpi_world),
}
"""By name. Which of them "auto" takes: :func:`_auto`."""
NO_LIBRARY: Final = "alone"
"""Instead of a name: a world of one process."""


def mpi_size(environ: Mapping[str, str]) -> int:
    """Return how many processes ``mpirun`` started together with this one; 0 without ``mpirun``."""
    given = environ.get("OMPI_COMM_WORLD_SIZE") or environ.get("PMI_SIZE") or "0"
    return int(given) if given.isdigit() else 0


def check_world(size: int, environ: Mapping[str, str]) -> None:
    """Refuse a world of one if another launcher has started more processes: each process would train alone.

    Raises :class:`UsageError`, which says what to do.
    """
    if size > 1 or launched_by_horovod(environ):
        return
    if (started := mpi_size(environ)) > 1 and not stock.PRESENT:
        raise UsageError(
            f"mpirun started {started} processes, but mpi4py is not installed and each would train alone; {MPI_INSTALL}"
        )
    if started > 1:
        instead = f"call elastic.init() instead of hvd.init() (it needs mpi4py: {MPI_INSTALL})"
        raise UsageError(
            f"mpirun started {started} processes, but Horovod was built without MPI and each would train alone; "
            f"{_OUR_LAUNCHER if FOR_TENSORFLOW else instead}, or build Horovod --with-mpi"
        )
    started = int(environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in environ else 1
    if started > 1:
        raise UsageError(
            f"torchrun started {started} processes, but Horovod does not know torchrun and each would train alone; "
            f"{_OUR_LAUNCHER if FOR_TENSORFLOW else 'call elastic.init() instead of hvd.init()'}"
        )


_OUR_LAUNCHER: Final = "start it with hvd-elastic run"


def launched_by_horovod(environ: Mapping[str, str]) -> bool:
    """Whether Horovod's launcher or ours has started this process for a world of Horovod."""
    return any(name in environ for name in ("HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_ELASTIC"))


def leave_world_of_one() -> Callable[[], None]:
    """Leave the world that only this process is in, while it waits for others. Return what enters one again."""
    if torch_in_place.is_wanted(os.environ):
        torch_in_place.leave()
        return torch_in_place.enter
    with_horovod.leave_world()
    return cast(Callable[[], None], with_horovod.join_world)


# --- rank and size


class RankAndSize(NamedTuple):
    """``rank`` counts from 0, ``size`` is the number of processes."""

    rank: int
    size: int


ALONE = RankAndSize(0, 1)


def current() -> RankAndSize:
    """Return rank and size now: the planned ones while the process is parked, :data:`ALONE` outside of any world."""
    planned = standby.planned()
    if planned is not None:
        return RankAndSize(planned.rank, planned.size)
    present = comms() or (HorovodComms() if stock.PRESENT else None)
    if present is None:
        return _place_in_torch_distributed()
    try:
        return RankAndSize(present.rank(), present.size())
    except ValueError:  # raised before hvd.init() and after hvd.shutdown()
        return _place_in_torch_distributed()


def _place_in_torch_distributed() -> RankAndSize:
    if distributed.is_available() and distributed.is_initialized():
        return RankAndSize(distributed.get_rank(), distributed.get_world_size())
    return ALONE


def joined() -> Comms:
    """Return the world that :func:`init`, a State or the script itself has joined.

    Raises :class:`UsageError` if there is none.
    """
    present = comms()
    if present is None and not (with_horovod.is_initialised() or with_torch.is_initialised()):
        raise UsageError("this process has not joined a world yet; call elastic.init() first")
    return present or init()


def rank() -> int:
    """Return this process's number in the world, from 0."""
    planned = standby.planned()
    return joined().rank() if planned is None else planned.rank


def size() -> int:
    """Return the number of processes in the world."""
    planned = standby.planned()
    return joined().size() if planned is None else planned.size


def local_rank() -> int:
    """Return this process's number on its machine, from 0. If each process has a device, it is the device's number."""
    kept = standby.local_rank()
    return joined().local_rank() if kept is None else kept
