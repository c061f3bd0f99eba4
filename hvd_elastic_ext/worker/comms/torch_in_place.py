"""Worlds of ``torch.distributed`` that one process enters one after another (``--engine torch``).

A world is a process group. Its members find each other by the keys that agent and launcher keep for Horovod's worlds,
too: :class:`AgentStore` asks the same proxy on 127.0.0.1. So nothing listens to the network, and the keys outlive rank
0, every restart of the launcher and the loss of any host. A question for a key of a lost world is answered at once.

Five things about torch 2.13 decide how a world is left:

* Gloo's own abort does nothing to an operation that waits for a silent peer. The fence cuts the connections instead
  (:mod:`hvd_elastic_ext.worker.process.fence`), and the operation ends with an error.
* A process group that dies waits for its threads, and a thread that drops its last operation may wait for the
  interpreter. Whoever drops the group last holds the interpreter if that is a ``DistributedDataParallel``: both wait
  for ever. So a group is kept until the *next* world is left, when its threads have long been idle.
* While Gloo connects to a member that has died, there is no connection that could be cut, and torch 2.13 tries five
  times as long as its time limit. So it connects in a thread, which is left behind if the launcher says that the world
  is lost, or after :data:`JOIN_S`.
* A sender that has sent a part of its data is never told that its peer is lost. Our own operations are left behind then
  (:meth:`InPlaceComms._wait`); a process that is in one of the script's is replaced
  (:mod:`~hvd_elastic_ext.worker.comms.torch_waits`).
* The error of a lost peer is a plain ``RuntimeError`` from wherever the script was, such as ``backward()``. It counts
  as the loss of a peer only if a connection of the world has ended, or was cut.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import quote
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.messages.rank_info import ALONE, Place, place_of
from hvd_elastic_ext.core.messages.slot_protocol import COLLECTIVES
from hvd_elastic_ext.worker.comms import torch_distributed
from hvd_elastic_ext.worker.comms.torch_distributed import TorchDistributedComms
from hvd_elastic_ext.worker.comms.torch_waits import TorchWaits
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.fence import HOROVOD_FENCE
from hvd_elastic_ext.worker.stock import HorovodInternalError

JOIN_S: Final = 60.0
"""Longest time to connect to the other members of a world."""
LOOK_S: Final = 0.02
"""Seconds between two looks whether the world that forms is lost."""
OPERATION_S: Final = 1800.0
"""Longest time of an operation: torch's default. A lost peer ends an operation long before."""
WAIT_S: Final = 0.25
"""Seconds between two looks whether the world of a pending operation is lost."""
TOLD_S: Final = 0.5
"""Seconds in which Gloo tells those it tells that a connection was cut; it needs milliseconds."""
ASK_S: Final = 60.0
"""Longest time until the proxy of the agent answers a question for a key; it answers after 2 s in any case."""


class WorldLost(RuntimeError):
    """The world of a key has lost a member."""


class AgentStore(dist.Store):  # type: ignore[misc, name-defined]
    """The keys of the world that this process has its rank in, as the agent's rendezvous proxy gives them.

    ``get`` and ``wait`` block until another member has set the key, and raise ``TimeoutError`` after the time limit and
    :class:`WorldLost` if the world is lost meanwhile. Keys are not counted or compared, and none is deleted: they go
    with their world.
    """

    def __init__(self, port: int, *, timeout_s: float = JOIN_S) -> None:
        super().__init__()
        self._port, self._timeout_s = port, timeout_s

    def set(self, key: str, value: str | bytes) -> None:
        status, _ = ask(self._port, "PUT", _path(key), value.encode() if isinstance(value, str) else bytes(value))
        if status != http.client.OK:
            raise WorldLost(f"{key} was not stored ({status})")

    def get(self, key: str) -> bytes:
        return self._wait_for(key, self._timeout_s)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        for key in keys:
            self._wait_for(key, limit_s)

    def check(self, keys: Sequence[str]) -> bool:
        return all(ask(self._port, "GET", _path(key))[0] == http.client.OK for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def add(self, key: str, amount: int) -> int:
        raise UsageError(
            f"Store.add({key!r}): the store of --engine torch does not count (TORCH_DIST_INIT_BARRIER does); "
            "leave that out, or give --engine torchrun"
        )

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s)

    def _wait_for(self, key: str, limit_s: float) -> bytes:
        deadline = time.monotonic() + limit_s
        while True:
            status, value = ask(self._port, "GET", _path(key))
            if status == http.client.OK:
                return value
            if status != http.client.NOT_FOUND:
                raise WorldLost(f"the world has lost a member before {key} was set")
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{key} was not set within {limit_s:g} s")


def _path(key: str) -> str:
    return "/torch/" + quote(key, safe="")


def ask(
    port: int, method: str, path: str, body: bytes | None = None, *, timeout_s: float | None = ASK_S
) -> tuple[int, bytes]:
    """Ask the agent's rendezvous proxy; return status and content. Raises ``OSError`` if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"the rendezvous proxy of the agent gave no answer: {error!r}") from error
    finally:
        connection.close()


class InPlaceComms(TorchDistributedComms):
    """The process group of the present world, which is left for the next one within this process."""

    def __init__(self) -> None:
        """States have one each, and all are of the present world."""

    @property
    def _host(self) -> dist.ProcessGroup:  # type: ignore[override]
        if not _groups:
            raise HorovodInternalError("this process is between two worlds")
        return _groups[-1]

    def rank(self) -> int:
        return dist.get_rank()

    def local_rank(self) -> int:
        """This process's number among those of the world on its machine."""
        return _place[0].local_rank

    def reset(self) -> None:
        """Leave the world, and enter the next one. Raises ``HorovodInternalError`` if that does not form."""
        leave()
        enter()

    def _wait(self, work: dist.Work | None) -> None:
        assert work is not None  # the process is in the group
        cut_at = None
        while True:
            try:
                work.wait(timedelta(seconds=LOOK_S if HOROVOD_FENCE.was_cut else WAIT_S))
                return
            except RuntimeError:  # or the time is over
                if work.is_completed():
                    work.wait()  # raises its own error, if it has one
                    return
            if HOROVOD_FENCE.was_cut:
                cut_at = cut_at or time.monotonic()
                if time.monotonic() - cut_at >= TOLD_S:
                    for group in _groups:  # whoever destroys it would wait for this operation
                        torch_distributed.never_destroy(group)
                    raise WorldLost("its connections were cut, and Gloo does not say so")

    def lost_by(self, error: BaseException) -> bool:
        """Whether an error of the script only says that a peer was lost."""
        return any(isinstance(each, RuntimeError) for each in _chain(error)) and HOROVOD_FENCE.is_broken()


_place: list[Place] = [ALONE]
_groups: list[dist.ProcessGroup] = []
"""Process group and our own group of the present world."""
_kept: list[object] = []
"""The store of the present world: torch's groups do not keep a store of Python's alive."""
_former: list[object] = []
"""Groups and store of the world before, until the present one is left."""
_ddps: Final[WeakSet[Any]] = WeakSet()
"""Each ``DistributedDataParallel`` of the present world."""
_TAKE_WORLD: Final = (
    "torch.distributed.nn.functional",
    "torch.distributed.fsdp.sharded_grad_scaler",
    "torch.distributed.optim.zero_redundancy_optimizer",
)
"""Modules with functions that take the world when they are imported, as a default. Torch imports the first of them when
a script makes its first optimizer.
"""
_left: Final[WeakSet[Any]] = WeakSet()
"""The groups of earlier worlds, as long as anyone has them."""
_INTERFACE: Final = os.environ.get("GLOO_SOCKET_IFNAME")
"""The interface that the user has chosen."""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those from which it was raised."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether this process was started to enter such worlds."""
    return environ.get(COLLECTIVES) == "torch"


def enter() -> None:
    """Enter the next world, or park until the launcher calls this process. Nothing if it is in a world already."""
    if dist.is_initialized():
        return
    _prepare()
    process = standby.current()
    process.init(_join, leave, later=True)
    if not process.parks:
        process.entered(dist.get_rank(), dist.get_world_size())


def _prepare() -> None:
    """Before the first world: have the fence cut the connections of the script's own groups, too, and the interpreter
    end without waiting for any group.
    """
    if not hasattr(dist.new_group, "hvd_elastic_fence"):
        atexit.register(_never_wait_at_exit)
        torch_distributed.rest_at_exit()
        standby.current().link.status.waits = TorchWaits().look
        fenced: Any = HOROVOD_FENCE.adding(_connecting_in_a_thread()(dist.new_group))
        fenced.hvd_elastic_fence = True
        for module in (dist, dist.distributed_c10d, dist.device_mesh):  # each has a name of its own for it
            cast(Any, module).new_group = fenced
        checks: Any = dist.distributed_c10d
        checks._rank_not_in_group = _refusing_former_groups(checks._rank_not_in_group)
        _know(nn.parallel.DistributedDataParallel)


def _know(kind: Any) -> None:
    """Know each ``DistributedDataParallel`` that is made."""
    plain = kind.__init__

    @functools.wraps(plain)
    def noting(self: nn.Module, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        _ddps.add(self)

    kind.__init__ = noting


def _retire(ddp: Any) -> None:
    """Have a DDP of a world that is left send nothing and say so if it is used in the next one.

    If the script keeps it, its hooks would send the gradients of the next world's first backward pass to this one, and
    without them it would average nothing.
    """
    if hasattr(ddp, "reducer"):
        ddp._remove_autograd_hooks()
    ddp.register_forward_pre_hook(_refuse, prepend=True)


def _refuse(ddp: nn.Module, *_: object) -> None:
    if torch.is_grad_enabled():
        raise UsageError(
            "this DistributedDataParallel belongs to an earlier world: make it in the training function, which begins "
            "anew in each world, or use elastic.ddp(model)"
        )


def _join() -> None:
    """Ask for a rank, and connect to the other members. Raises ``HorovodInternalError`` if the world does not form."""
    try:
        _connect()
    except (RuntimeError, OSError) as error:  # also torch's own errors, and TimeoutError
        leave()
        raise HorovodInternalError(f"joining the next world failed: {error}") from error


def _connect() -> None:
    alone = standby.ADDRESS not in os.environ
    _choose_interface()
    place = ALONE if alone else _ask_for_rank(int(os.environ[standby.PORT]))
    store = dist.HashStore() if alone else AgentStore(int(os.environ[standby.PORT]))  # type: ignore[attr-defined]
    HOROVOD_FENCE.tracking(_form)(store, place)  # from here on: others may open connections while a rank is waited for


def _choose_interface() -> None:
    """Have Gloo use the interface that the user or the launcher has chosen. Raises :class:`UsageError` for one that
    this machine lacks.
    """
    interface = _INTERFACE or os.environ.get("HOROVOD_GLOO_IFACE")
    if interface is None:
        os.environ.pop("GLOO_SOCKET_IFNAME", None)  # that of an earlier world
        return
    known = [name for _, name in socket.if_nameindex()]
    for name in interface.split(","):
        if name.partition(":")[0] not in known:  # eth0:1 is an address of eth0
            has = ", ".join(known)
            raise UsageError(f"GLOO_SOCKET_IFNAME={interface}: this machine has no interface {name}, only {has}")
    os.environ["GLOO_SOCKET_IFNAME"] = interface


def _form(store: Any, place: Place) -> None:
    """Make the groups of a world. CUDA tensors go over Gloo, too: nothing ends NCCL's operations with a lost peer."""
    limit = timedelta(seconds=OPERATION_S)  # Gloo's time limit for connecting is also the one of its waits
    module: Any = dist.distributed_c10d
    module._world.group_count = 0  # a group that failed leaves its number, which newcomers do not know
    _kept[:] = [store]
    hook = sys.excepthook
    try:
        with _connecting_in_a_thread():
            dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size, timeout=limit)
            host = dist.new_group(backend="gloo", timeout=limit)
    finally:
        sys.excepthook = hook  # torch wraps it in each world
    world = dist.group.WORLD
    assert world is not None
    _place[0] = place
    _groups[:] = [world, host]
    torch_distributed.note_group(world, host)


def _never_wait_at_exit() -> None:
    """At the end of the interpreter, torch would wait for operations whose peers may never come."""
    for group in [*dist.distributed_c10d._world.pg_map, *_groups, *_former]:
        torch_distributed.never_destroy(group)


class _InAThread(type):
    """The type of a stand-in for Gloo's process group: it is made in a thread, and it is the real one."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        made: list[Any] = []
        over = threading.Event()

        def connect() -> None:
            try:
                made.append(dist.ProcessGroupGloo(*args, **options))
            except Exception as error:  # noqa: BLE001 (it is raised where the group is asked for)
                made.append(error)
            over.set()

        threading.Thread(target=connect, daemon=True, name="hvd-elastic connects").start()
        deadline = time.monotonic() + JOIN_S
        while not over.wait(LOOK_S):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"not connected to all members within {JOIN_S:g} s")
            if HOROVOD_FENCE.was_cut:
                raise WorldLost("the world has lost a member while it formed")
        if isinstance(made[0], Exception):
            raise made[0]
        return made[0]

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, dist.ProcessGroupGloo)


class _Gloo(metaclass=_InAThread):
    pass


@contextlib.contextmanager
def _connecting_in_a_thread() -> Iterator[None]:
    """Have torch make its Gloo groups by :class:`_Gloo`."""
    module: Any = dist.distributed_c10d
    module.ProcessGroupGloo = _Gloo
    try:
        yield
    finally:
        module.ProcessGroupGloo = dist.ProcessGroupGloo


def _ask_for_rank(port: int) -> Place:
    """The answer comes when all members of the next world have asked."""
    status, text = ask(
        port, "GET", f"/rank_and_size/{quote(os.environ.get('HOROVOD_HOSTNAME', ''), safe='')}/0", timeout_s=None
    )
    place = place_of(text.decode("ascii", "replace")) if status == http.client.OK else None
    if place is None:
        raise WorldLost(f"no rank was given ({status})")
    return place


def leave() -> None:
    """Leave the present world; see the module for why its group is kept for a while."""
    _leave()


def _let_go() -> None:
    if not dist.is_initialized():
        return
    former = [*dist.distributed_c10d._world.pg_map, *_kept]  # also groups of the script's own
    _left.update(dist.distributed_c10d._world.pg_map)
    if standby.current().parks and not _ddps:
        former = []  # nobody else has one: its threads, which look for work all the time, end with it now
    for ddp in _ddps:
        _retire(ddp)
    _ddps.clear()
    _take_next_world()
    dist.destroy_process_group()
    _groups.clear()
    _kept.clear()
    torch_distributed.forget_groups()
    _former[:] = former


def _take_next_world() -> None:
    """Have the functions of :data:`_TAKE_WORLD` look for the world at each call, as they do if they are imported
    outside of any world.
    """
    world = dist.group.WORLD
    for module in filter(None, map(sys.modules.get, _TAKE_WORLD)):
        kinds = [value for value in vars(module).values() if isinstance(value, type)]
        for function in [value for owner in (module, *kinds) for value in vars(owner).values()]:
            defaults = getattr(function, "__defaults__", None) or ()
            if any(value is world for value in defaults):
                function.__defaults__ = tuple(None if value is world else value for value in defaults)


def _refusing_former_groups(is_outside: Any) -> Any:
    """Torch's check of the group of an operation: one of an earlier world is refused. In a world of one its operations
    would still end well, and reduce nothing.
    """

    @functools.wraps(is_outside)
    def check(group: Any) -> Any:
        if group is not None and group in _left:
            raise UsageError(
                "this process group belongs to an earlier world: make it, and what keeps it, in the training function, "
                "which begins anew in each world"
            )
        return is_outside(group)

    return check


_leave: Final[Any] = HOROVOD_FENCE.closing(_let_go, drain=False)  # Gloo's thread still reads them
