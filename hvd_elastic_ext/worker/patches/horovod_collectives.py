"""Wraps Horovod's collectives where scripts find them: outside of training functions they are recorded, or replayed.

See :mod:`hvd_elastic_ext.worker.calls.collectives`. Horovod's own code and ours call other names of the same functions.
``broadcast_parameters`` and ``broadcast_optimizer_state`` are left alone: a process that comes later keeps its own
values, and the sync in its training function follows.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.process import standby

if TYPE_CHECKING:
    from hvd_elastic_ext.worker.calls.calls import Between
    from hvd_elastic_ext.worker.calls.collectives import Got

log = logging.getLogger(__name__)

PUBLIC_MODULE: Final = "hvd_elastic_ext.torch"
TENSORS: Final = ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter")
"""Kinds that are called with one tensor, and have an asynchronous form; some of them with others in place."""
GROUPS: Final = ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter")
OTHERS: Final = ("broadcast_object", "allgather_object", "sparse_allreduce_async", "barrier", "join")
NOT_RECORDED: Final = ("broadcast_parameters", "broadcast_optimizer_state")

_ROWS_DIFFER: Final = frozenset(("allgather", "grouped_allgather", "alltoall"))
"""Kinds whose tensors may have different numbers of rows on the ranks."""


def wrap(module: ModuleType) -> None:
    """Wrap the collectives of ``horovod.torch``."""
    pending = _Pending()
    for kind in (*TENSORS, *GROUPS):
        for place in ("", "_"):
            _replace(module, f"{kind}{place}", partial(_Collective, f"{kind}{place}", pending, later=False))
            _replace(module, f"{kind}_async{place}", partial(_Collective, f"{kind}{place}", pending, later=True))
    for kind in OTHERS:
        _replace(module, kind, partial(_Collective, kind, pending, later=False))
    for kind in NOT_RECORDED:
        _replace(module, kind, _if_there_are_peers)
    _replace(module, "synchronize", pending.waiting)
    _replace(module, "poll", pending.polling)


def _replace(module: ModuleType, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    horovods = getattr(module, name, None)
    if horovods is None:
        return
    inner = wrapped(horovods)

    @functools.wraps(horovods)
    def function(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    setattr(module, name, function)


def _between() -> Between | None:
    """What happens now between two training functions. None within one, and without a State of ours."""
    if PUBLIC_MODULE not in sys.modules:
        return None
    from hvd_elastic_ext.worker.calls.calls import current

    return current().between


def _if_there_are_peers(horovods: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        between = _between()
        return None if between is not None and between.behind else horovods(*args, **kwargs)

    return called


class _Pending:
    """Collectives that have begun, by their handles."""

    def __init__(self) -> None:
        self._recorded: dict[int, tuple[Between, int | None]] = {}
        self._given: dict[int, Any] = {}
        self._next = -1

    def records(self, handle: int, between: Between, number: int | None) -> int:
        """Note that the result of a handle goes into a record."""
        if len(self._recorded) > 1 << 12:
            self._recorded.clear()  # nobody waits for them
        self._recorded[handle] = between, number
        return handle

    def gives(self, value: Any) -> int:
        """Return a handle for a value that is there already. Horovod's handles are not negative."""
        handle, self._next = self._next, self._next - 1
        self._given[handle] = value
        return handle

    def waiting(self, horovods: Callable[[int], Any]) -> Callable[[int], Any]:
        """Wrap ``hvd.synchronize``."""

        def synchronize(handle: int) -> Any:
            if handle in self._given:
                return self._given.pop(handle)
            between, number = self._recorded.pop(handle, (None, None))
            value = horovods(handle)
            if between is not None and between is _between():
                between.record.end(number, value)
            return value

        return synchronize

    def polling(self, horovods: Callable[[int], bool]) -> Callable[[int], bool]:
        """Wrap ``hvd.poll``."""
        return lambda handle: handle in self._given or horovods(handle)


class _Collective:
    """One function of Horovod. ``later``: it returns a handle."""

    def __init__(self, kind: str, pending: _Pending, horovods: Callable[..., Any], *, later: bool) -> None:
        self._kind = kind
        self._horovods = horovods
        self._pending = pending
        self._later = later
        self._signature = inspect.signature(horovods)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        between = _between()
        if between is None:
            _tell_if_late(self._kind)
            return self._horovods(*args, **kwargs)
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError:
            return self._horovods(*args, **kwargs)  # which raises it, too
        own = given.get("tensor", given.get("tensors"))
        tensors: Sequence[Any] = list(own) if isinstance(own, list | tuple) else [own]
        name = None if given.get("name") is None else str(given["name"])
        do = partial(self._horovods, *args, **kwargs)
        if between.replays:
            return self._replay(between, name, own, tensors, do)
        return self._record(between, name, tensors, do)

    def _given(self, tensors: Sequence[Any]) -> str:
        from hvd_elastic_ext.worker.calls.collectives import given_by

        return given_by(tensors, rows_differ=self._kind in _ROWS_DIFFER)

    def _record(self, between: Between, name: str | None, tensors: Sequence[Any], do: Callable[[], Any]) -> Any:
        size = sys.modules["horovod.torch.mpi_ops"].size()
        number = between.record.begin(self._kind, name, self._given(tensors), size=size)
        value = do()
        if self._later:
            return self._pending.records(value, between, number)
        between.record.end(number, value)
        return value

    def _replay(
        self, between: Between, name: str | None, own: Any, tensors: Sequence[Any], do: Callable[[], Any]
    ) -> Any:
        from hvd_elastic_ext.worker.calls import collectives

        replay, told = between.replay, bool(between.replay.why)
        got = replay.next(self._kind, name, self._given(tensors))
        call = collectives.words(self._kind, name)
        if got is None:
            return self._alone(between, call, do, told=told)
        if self._kind == collectives.BARRIER and between.together:
            return do()
        if self._kind == collectives.BARRIER and between.behind:
            return None  # the others of its world have passed it
        if self._kind == collectives.BARRIER:
            between.barriers += 1
            standby.current().pass_barrier(between.call, between.barriers)
            return None
        if self._kind in collectives.BY_RANK | collectives.OF_RANK:
            _tell_of_the_ranks(call, got)
        in_place = self._kind.endswith("_")
        value = collectives.put_into(own, got.value) if in_place else collectives.to_device_of(tensors, got.value)
        return self._pending.gives(value) if self._later else value

    def _alone(self, between: Between, call: str, do: Callable[[], Any], *, told: bool) -> Any:
        """Do what a process does for which nothing is replayed."""
        why, where = between.replay.why, f"after call {between.call}" if between.call else "before the first call"
        if between.together:
            if not told:
                log.warning(
                    "%s %s runs again, as do all that follow, until the next call: this job was started again, and %s",
                    call,
                    where,
                    why,
                )
            return do()
        if between.behind:
            raise StateError(f"{call} {where} would wait for ever, since the others have passed it: {why}")
        if not told:
            standby.current().leave_barriers(between.call)
            log.warning(
                "%s %s acts on this process alone, as do all that follow, until the next call: this process "
                "comes later than the others, and %s",
                call,
                where,
                why,
            )
        return do()


def _tell_if_late(kind: str) -> None:
    """Say once that the peers of a process without a State of ours take no part: they are in their training function.

    It is in their world already, so it cannot even act alone.
    """
    process = standby.current()
    if process.came_later:
        process.came_later = False
        log.warning(
            "hvd.%s() before the training function waits for the other processes, which are in theirs and do not take "
            "part: import hvd_elastic_ext.torch, or run with --adopt, and it returns what it returned to them",
            kind,
        )


_told_sizes: Final[set[int]] = set()


def _tell_of_the_ranks(call: str, got: Got) -> None:
    """Say once for each size of a world that a result is indexed by its ranks."""
    if got.entry.size not in _told_sizes:
        _told_sizes.add(got.entry.size)
        log.warning(
            "%s returns what it returned to the %d processes that ran it together earlier: this process was not among "
            "them (further calls like this are not reported)",
            call,
            got.entry.size,
        )
