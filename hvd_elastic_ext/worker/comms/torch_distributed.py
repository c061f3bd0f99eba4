"""``torch.distributed`` behind the ``Comms`` port: worlds of ``torchrun`` or another torch launcher.

A process group cannot form again within a process: with its world the process ends, and the launcher starts others.

torchrun (torch 2.13, two agents) uses one key-value store for all rounds, so a restarted worker finds the addresses of
the round before. The variables do not identify a round either, because each agent counts its own restarts. So rank 0
draws a token for each world, and gives it to every rank that announces itself *now*, under a new name: each world has a
key space of its own. This does not help when another node becomes rank 0: the same torch then gives some workers the
old store and some the new one. ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` in the agents' environment gives each round its
own store, and makes the token unnecessary.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from hvd_elastic_ext.core.clock import Clock, SystemClock
from hvd_elastic_ext.core.messages.slot_protocol import ENGINE, START_AGAIN
from hvd_elastic_ext.worker.comms import Comms, Finished, Pending, copy_back, pieces, reducible
from hvd_elastic_ext.worker.comms.pinned_tensors import pin
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.stock import HorovodInternalError

_TOKEN_S: Final = 120.0
"""Seconds to wait for the other workers of a round. torchrun starts them together, but slow disks may delay some."""
_PIECE: Final = 1 << 30
_PINNED: Final = 2
"""C++ references to a tensor that only Python and a pin hold."""
_NATIVE: Final = (torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
_NATIVE_CUDA: Final = (*_NATIVE, torch.bfloat16, torch.uint8, torch.int8)


class TorchDistributedComms(Comms):
    """The initialised process group.

    Host memory goes through a Gloo group of our own: torch matches operations of one group by their order, and the
    user's operations have another order. All ranks create this group together, once for each process group.
    """

    def __init__(self) -> None:
        self._host = _host_group()
        rest_at_exit()

    def rank(self) -> int:
        """The rank in torch's default process group."""
        return dist.get_rank()

    def size(self) -> int:
        """Processes in torch's default process group."""
        return dist.get_world_size()

    def local_rank(self) -> int:
        """This process's number on its machine, as torchrun gives it; else 0."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        """Over Gloo, in pieces of 1 GiB.

        Raises :class:`UsageError` for anything but a flat, contiguous uint8 tensor in host memory.
        """
        parts = list(pieces(data, _PIECE))
        if self.size() == 1:
            return
        with _operation(name, *parts):
            for piece in parts:
                self._wait(dist.broadcast(piece, src=root, group=self._host, async_op=True))

    def sum(self, data: Tensor, *, name: str) -> None:
        """Over NCCL for a CUDA tensor if the process group has it; otherwise over Gloo, through host memory.

        Raises :class:`UsageError` for a sparse tensor.
        """
        on_device = data.is_cuda and "nccl" in str(dist.get_backend_config())
        carried = reducible(data, _NATIVE_CUDA if on_device else _NATIVE, device="cuda" if on_device else "cpu")
        if self.size() == 1 or data.numel() == 0:
            return
        with _operation(name, carried):
            self._wait(dist.all_reduce(carried, group=None if on_device else self._host, async_op=True))
        copy_back(carried, data)

    def start_max(self, number: int, *, name: str) -> Pending:
        """Over Gloo. This does not wait for an earlier maximum of this name."""
        if self.size() == 1:
            return Finished(number)
        data = torch.tensor([number])
        with _operation(name, data):
            work = dist.all_reduce(data, dist.ReduceOp.MAX, group=self._host, async_op=True)
        return _PendingMax(partial(self._wait, work), data, name)

    def _wait(self, work: dist.Work | None) -> None:
        """Wait for an operation of ours."""
        assert work is not None  # the process is in the group
        work.wait()

    def reset(self) -> None:
        """End this process: a process group cannot form again within it.

        Raises ``SystemExit`` with :data:`START_AGAIN`. torchrun then restarts all workers of this machine, within
        ``--max-restarts``; ``hvd-elastic run`` starts other processes.
        """
        _leave("this world is over")

    def begun_by_script(self) -> int | None:
        """The sum of torch's counts for all groups except ours, and of the count for ``elastic.wrap``."""
        return begun_by_script()


class _PendingMax:
    """A pending maximum. torch keeps the operation and its memory until it ends."""

    def __init__(self, wait: Callable[[], None], data: Tensor, name: str) -> None:
        self._wait = wait
        self._data = data
        self._name = name

    def wait(self) -> int:
        with _operation(self._name):
            self._wait()
        return int(self._data.item())


def exit_message(reason: str, environ: Mapping[str, str]) -> str:
    """Return one line that says why this process ends and what follows, with torchrun's restarts from ``environ``."""
    count, most = (environ.get(f"TORCHELASTIC_{name}") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    if ENGINE in environ:
        follows = "hvd-elastic starts others in their place, from their last commit"
    elif count is None or most is None:
        follows = "start the workers again: nothing here restarts them"
    elif int(count) >= int(most):
        follows = f"torchrun has no restart left (--max-restarts {most}), so the job ends"
    else:
        follows = f"torchrun starts the workers again (restart {int(count) + 1} of {most}), from their last commit"
    return f"hvd-elastic: {reason}; {follows}\n"


def _leave(reason: str) -> NoReturn:
    standby.current().end_fixed_world()
    sys.stderr.write(exit_message(reason, os.environ))
    sys.stderr.flush()
    if dist.is_initialized():
        never_destroy(dist.group.WORLD)
    raise standby.OrderedExit(START_AGAIN)


_pins: Final[list[Tensor]] = []
"""One more C++ reference to each tensor that a thread of torch may hold.

If a thread drops the last reference except Python's, it needs the interpreter lock. An interpreter that is ending stops
such a thread in the middle of torch's code, and the process aborts instead of exiting.
"""


@contextlib.contextmanager
def _operation(name: str, *tensors: Tensor) -> Iterator[None]:
    """Pin ``tensors`` until torch has dropped them, and translate errors: torch has none of its own for a lost peer.

    Gloo raises ``RuntimeError``; NCCL raises a subclass of it.
    """
    _pins.extend(map(pin, tensors))
    try:
        yield
    except (RuntimeError, TimeoutError) as error:
        raise HorovodInternalError(f"{name}: {error}") from error
    finally:
        _pins[:] = [holder for holder in _pins if cast(Any, holder.grad)._use_count() > _PINNED]


_host_groups: Final[dict[int, tuple[dist.ProcessGroup, dist.ProcessGroup]]] = {}
"""Our Gloo group by the id of its world. The world is kept, so that its id stays unique."""
_averaged: Final = [0]


def note_averaging() -> None:
    """Count a reduction of ``elastic.wrap``: it is the script's, although it uses our group."""
    _averaged[0] += 1


def begun_by_script() -> int | None:
    """Return how many collectives the script has begun: torch numbers those of each group, also what DDP begins in C++.

    In our own group, only the calls of :func:`note_averaging` count. None if torch does not count. This shows in our
    group: each State syncs first, so that group must have begun some.
    """
    ours = [host for _, host in _host_groups.values()]
    try:
        if ours and not all(map(_number, ours)):
            return None
        groups = [group for group in cast(Any, dist.distributed_c10d)._world.pg_map if group not in ours]
        return _averaged[0] + sum(map(_number, groups))
    except (AttributeError, RuntimeError):
        return None


def _number(group: Any) -> int:
    backends = [group._get_backend(device) for device in group._device_types]
    return sum(int(backend._get_sequence_number_for_group()) for backend in backends)


def note_group(world: dist.ProcessGroup, host: dist.ProcessGroup) -> None:
    """Note our own group of a world that was entered within this process."""
    _host_groups.clear()
    _host_groups[id(world)] = (world, host)


def forget_groups() -> None:
    """Forget the group of a world that was left within this process."""
    _host_groups.clear()


def _host_group() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None  # torch.distributed is initialised
    if id(world) not in _host_groups:
        _host_groups.clear()
        _host_groups[id(world)] = (world, dist.new_group(backend="gloo"))
        never_destroy(_host_groups[id(world)][1])
    return _host_groups[id(world)][1]


def never_destroy(group: object) -> None:
    """Keep a group (or the pins of what its threads hold) beyond the end of the interpreter.

    To destroy a group, torch waits for its operations: for half an hour, if a live peer never takes part. So a process
    that ends with a pending maximum would wait, and its peers would wait for it.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


never_destroy(_pins)

_GLOO: Final = "pt_gloo_runloop"
"""What torch calls the threads that carry out Gloo's operations."""
_REST_S: Final = 2.0
"""Most seconds that the end of a process waits for these threads."""
_LOOK_S: Final = 0.002


def rest_at_exit() -> None:
    """Have the end of the interpreter wait until Gloo's threads have nothing to do. May be called again.

    :data:`_pins` hold our own tensors, but a thread may just as well hold a tensor of the script, whose last operation
    it has finished a moment ago: the process would abort after all its work is done. A thread that waits for a peer
    holds nothing up.
    """
    atexit.unregister(_rest)
    atexit.register(_rest)


def _rest() -> None:
    clock, calm = SystemClock(), 0
    deadline = clock.mono() + _REST_S
    while calm < 2 and clock.mono() < deadline:  # twice, because a thread that waits for the interpreter looks idle
        calm = 0 if any(_is_busy(task) for task in Path("/proc/self/task").iterdir()) else calm + 1
        clock.wait(threading.Event(), _LOOK_S)


def _is_busy(task: Path) -> bool:
    """Whether a thread of this process carries out an operation of Gloo now, and does not wait."""
    try:
        stat = (task / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # it has ended
        return False
    name, _, fields = stat.partition("(")[2].rpartition(") ")
    return name == _GLOO and fields[:1] == "R"


def is_initialised() -> bool:
    """Whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def join_world() -> None:
    """Join the process group that the environment describes: Gloo for host memory, NCCL for CUDA devices if any.

    Under torchrun, if a world does not form, this process ends as with :meth:`TorchDistributedComms.reset`; elsewhere
    this counts as a lost peer.
    """
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    try:
        with _operation("joining the world"):
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                _join_with_token(backend)
            else:
                dist.init_process_group(backend)
    except HorovodInternalError as error:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            raise
        _leave(" ".join(str(error).split()))


def _join_with_token(backend: str) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*where, is_master=False, timeout=timedelta(seconds=_TOKEN_S))  # type: ignore[attr-defined]
    try:
        token = agree_on_token(_within(store, "meeting"), rank, size, timeout_s=_TOKEN_S, clock=SystemClock())
    except (RuntimeError, TimeoutError) as error:
        raise TimeoutError(
            f"{error} (torchrun may have told workers different stores; "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of every torchrun prevents that)"
        ) from error
    dist.init_process_group(backend, store=_within(store, token), rank=rank, world_size=size)


def _within(store: Any, name: str) -> Any:
    return dist.PrefixStore(f"hvd_elastic_ext/{name}", store)  # type: ignore[attr-defined]


# --- a key space for each world of torchrun


PAUSE_S: Final = 0.01


def agree_on_token(store: Store, rank: int, size: int, *, timeout_s: float, clock: Clock) -> str:
    """Return the token on which exactly the ranks of this round agree.

    Raises ``TimeoutError`` or torch's own error if ranks are missing after ``timeout_s`` seconds.
    """
    if rank == 0:
        return _answer_all(store, size, timeout_s=timeout_s, clock=clock)
    return _announce(store, rank, timeout_s=timeout_s)


def _announce(store: Store, rank: int, *, timeout_s: float) -> str:
    """Announce this process under a new name, so that only an answer to this process counts."""
    mine = uuid.uuid4().hex
    store.set(f"here/{rank}", mine)
    store.wait([f"world/{mine}"], timedelta(seconds=timeout_s))
    token = store.get(f"world/{mine}").decode()
    store.delete_key(f"world/{mine}")
    store.set(f"met/{token}/{rank}", "")
    return token


def _answer_all(store: Store, size: int, *, timeout_s: float, clock: Clock) -> str:
    """Answer the ranks until all have the token. An entry under ``here`` may be from a process that has ended."""
    token, deadline = uuid.uuid4().hex, clock.mono() + timeout_s
    missing, answered = set(range(1, size)), set[str]()
    while missing:
        for rank in sorted(missing):
            if store.check([f"met/{token}/{rank}"]):
                missing.remove(rank)
                store.delete_key(f"met/{token}/{rank}")
            elif store.check([f"here/{rank}"]) and (who := store.get(f"here/{rank}").decode()) not in answered:
                answered.add(who)
                store.set(f"world/{who}", token)
        if missing and clock.mono() > deadline:
            raise TimeoutError(f"ranks {sorted(missing)} of {size} did not come within {timeout_s:g} s")
        clock.wait(threading.Event(), PAUSE_S)
    return token
