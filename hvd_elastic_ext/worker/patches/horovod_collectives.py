"""Wraps Horovod's collectives where scripts find them: outside of training functions they are recorded, or replayed.

See :mod:`hvd_elastic_ext.worker.calls.collectives`. Our own code calls other names of the same functions, and so does
Horovod's; where that calls one of these, as in ``horovod.tensorflow``, the outermost call counts.
``broadcast_parameters`` and ``broadcast_optimizer_state`` are left alone: a process that comes later keeps its own
values, and the sync in its training function follows.

In TensorFlow a collective may be an operation of a graph. What such a one returns is not recorded: the graph runs where
Python does not see it, and most such graphs are those of training steps. A process that comes later says so when it
makes the graph.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.process import standby

if TYPE_CHECKING:
    from hvd_elastic_ext.worker.calls.calls import Between
    from hvd_elastic_ext.worker.calls.collectives import Got
    from hvd_elastic_ext.worker.patches.tensors import Tensors

log = logging.getLogger(__name__)

PUBLIC_MODULES: Final = ("hvd_elastic_ext.torch", "hvd_elastic_ext.tensorflow")
"""A script that has imported one of them has a training function at which a process can be met."""
TENSORS: Final = ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter")
"""Kinds that are called with one tensor, and have an asynchronous form; some of them with others in place."""
GROUPS: Final = ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter")
OTHERS: Final = ("broadcast_object", "allgather_object", "sparse_allreduce_async", "barrier", "join")
VARIABLES: Final = "broadcast_variables"
NOT_RECORDED: Final = ("broadcast_parameters", "broadcast_optimizer_state")
INNER: Final = ("_allreduce_cond", "_grouped_allreduce_cond")
"""Functions of ``horovod.tensorflow`` that average gradients, and call a collective by the name that is wrapped."""

_ROWS_DIFFER: Final = frozenset(("allgather", "grouped_allgather", "alltoall"))
"""Kinds whose tensors may have different numbers of rows on the ranks."""


class Library(NamedTuple):
    """One module of Horovod's."""

    name: str
    public: str
    """Ours for it."""
    tensors: Tensors

    def size(self) -> int:
        """Processes in its world."""
        return int(sys.modules[f"{self.name}.mpi_ops"].size())


def wrap(module: ModuleType, *, untraced: Callable[[Any], Any] = lambda function: function) -> None:
    """Wrap the collectives of ``horovod.torch`` or ``horovod.tensorflow``. ``untraced``: what a library needs around a
    function that it must not translate."""
    from hvd_elastic_ext.worker.patches import tensors

    with_torch = module.__name__ == "horovod.torch"
    of = tensors.OfTorch() if with_torch else tensors.OfTensorFlow()
    library = Library(module.__name__, PUBLIC_MODULES[0 if with_torch else 1], of)
    pending = _Pending()

    def replace(name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        _replace(module, name, wrapped, untraced)

    for kind in (*TENSORS, *GROUPS):
        for place in ("", "_"):
            replace(f"{kind}{place}", partial(_Collective, f"{kind}{place}", library, pending, later=False))
            replace(f"{kind}_async{place}", partial(_Collective, f"{kind}{place}", library, pending, later=True))
    for kind in (*OTHERS, VARIABLES):
        replace(kind, partial(_Collective, kind, library, pending, later=False))
    for kind in NOT_RECORDED:
        replace(kind, _if_there_are_peers)
    for name in INNER:
        replace(name, lambda horovods: partial(_within, horovods))
    replace("synchronize", pending.waiting)
    replace("poll", pending.polling)


class _Nesting(threading.local):
    """Whether this thread is in a function of Horovod's that counts as one call."""

    depth = 0


_nesting: Final = _Nesting()


def _within(horovods: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of Horovod's; collectives that it calls are part of it."""
    _nesting.depth += 1
    try:
        return horovods(*args, **kwargs)
    finally:
        _nesting.depth -= 1


def _replace(
    module: ModuleType,
    name: str,
    wrapped: Callable[[Callable[..., Any]], Callable[..., Any]],
    untraced: Callable[[Any], Any],
) -> None:
    horovods = getattr(module, name, None)
    if horovods is None:
        return
    inner = wrapped(horovods)

    @functools.wraps(horovods)
    def function(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    setattr(module, name, untraced(function))


def _between() -> Between | None:
    """What happens now between two training functions. None within one, also in a rehearsal of it, and without a State
    of ours."""
    if not any(name in sys.modules for name in PUBLIC_MODULES):
        return None
    from hvd_elastic_ext.worker.calls.calls import current
    from hvd_elastic_ext.worker.state import rehearsal

    return None if rehearsal.is_under_way() else current().between


def _if_there_are_peers(horovods: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        between = _between()
        return None if between is not None and between.behind else horovods(*args, **kwargs)

    return called


class _Pending:
    """Collectives that have begun, by their handles."""

    def __init__(self) -> None:
        self._recorded: dict[int, tuple[Between, int | None, Callable[[Any], Any]]] = {}
        self._given: dict[int, Any] = {}
        self._next = -1

    def records(self, handle: int, between: Between, number: int | None, plain: Callable[[Any], Any]) -> int:
        """Note that the result of a handle goes into a record."""
        if len(self._recorded) > 1 << 12:
            self._recorded.clear()  # nobody waits for them
        self._recorded[handle] = between, number, plain
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
            recorded = self._recorded.pop(handle, None)
            value = horovods(handle)
            if recorded is not None and recorded[0] is _between():
                between, number, plain = recorded
                between.record.end(number, value, plain=plain)
            return value

        return synchronize

    def polling(self, horovods: Callable[[int], bool]) -> Callable[[int], bool]:
        """Wrap ``hvd.poll``."""
        return lambda handle: handle in self._given or horovods(handle)


class _Collective:
    """One function of Horovod. ``later``: it returns a handle."""

    def __init__(
        self, kind: str, library: Library, pending: _Pending, horovods: Callable[..., Any], *, later: bool
    ) -> None:
        self._kind = kind
        self._library = library
        self._tensors = library.tensors
        self._horovods = horovods
        self._pending = pending
        self._later = later
        self._signature = inspect.signature(horovods)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        between = None if _nesting.depth else _between()
        if between is None:
            if not _nesting.depth:
                _tell_if_late(self._kind, self._library)
            return self._horovods(*args, **kwargs)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return self._horovods(*args, **kwargs)  # which raises it, too
        given = bound.arguments
        own = next((given[name] for name in ("tensor", "tensors", "variables") if name in given), None)
        if self._kind == VARIABLES and isinstance(own, Iterable) and not hasattr(own, "dtype"):
            given["variables"] = own = list(own)  # it may be an iterator
            args, kwargs = bound.args, bound.kwargs
        tensors: Sequence[Any] = list(own) if isinstance(own, list | tuple) else [own]
        name = None if given.get("name") is None else str(given["name"])
        do = partial(_within, self._horovods, *args, **kwargs)
        if self._tensors.in_graph():
            self._tell_of_a_graph(between, name)
            return do()
        if between.replays:
            return self._replay(between, name, own, tensors, do)
        return self._record(between, name, tensors, do)

    def _given(self, tensors: Sequence[Any]) -> str:
        from hvd_elastic_ext.worker.calls.collectives import given_by

        return given_by(tensors, rows_differ=self._kind in _ROWS_DIFFER)

    def _plain(self, value: Any) -> Any:
        return self._tensors.plain(self._kind, value)

    def _record(self, between: Between, name: str | None, tensors: Sequence[Any], do: Callable[[], Any]) -> Any:
        number = between.record.begin(self._kind, name, self._given(tensors), size=self._library.size())
        value = do()
        if self._later:
            return self._pending.records(value, between, number, self._plain)
        if self._kind == VARIABLES:
            self._record_variables(between, number, tensors)
        else:
            between.record.end(number, value, plain=self._plain)
        return value

    def _record_variables(self, between: Between, number: int | None, variables: Sequence[Any]) -> None:
        from hvd_elastic_ext.worker.calls.collectives import MOST_OF_VARIABLES

        try:
            size = sum(each.dtype.size * each.shape.num_elements() for each in variables)
        except Exception:  # noqa: BLE001 - of an open shape, or no variable: a record must not end a script
            between.record.leave(number, "the size of the variables is not known")
            return
        if size <= MOST_OF_VARIABLES:
            between.record.end(number, variables, plain=self._plain)
        else:
            between.record.leave(number, f"the variables have more than {MOST_OF_VARIABLES >> 10} KiB")

    def _replay(
        self, between: Between, name: str | None, own: Any, tensors: Sequence[Any], do: Callable[[], Any]
    ) -> Any:
        from hvd_elastic_ext.worker.calls import collectives

        replay, told = between.replay, bool(between.replay.why)
        got = replay.next(self._kind, name, self._given(tensors))
        call = collectives.words(self._kind, name)
        if got is None:
            return self._alone(between, call, do, told=told)
        not_known = self._kind == VARIABLES and got.entry.value is None
        if between.together and (not_known or self._kind == collectives.BARRIER):
            return do()
        if self._kind == collectives.BARRIER and between.behind:
            return None  # the others of its world have passed it
        if self._kind == collectives.BARRIER:
            between.barriers += 1
            standby.current().pass_barrier(between.call, between.barriers)
            return None
        if not_known:
            _kept_own.append((call, [weakref.ref(each) for each in tensors]))
            return None
        if self._kind in collectives.BY_RANK | collectives.OF_RANK:
            _tell_of_the_ranks(call, got)
        if self._kind == VARIABLES:
            self._tensors.put_into(own, got.value)
            return None
        if self._kind.endswith("_"):
            value = self._tensors.put_into(own, got.value)
        else:
            value = self._tensors.given_back(self._kind, got.value, tensors)
        return self._pending.gives(value) if self._later else value

    def _tell_of_a_graph(self, between: Between, name: str | None) -> None:
        """Say once for each collective that a graph gets nothing of what it returned to the others."""
        if not between.replays or between.together:
            return
        from hvd_elastic_ext.worker.calls.collectives import words

        call, where = words(self._kind, name), _where(between)
        if between.behind:
            raise StateError(f"{call} {where}, in a graph, would wait for ever, since the others have passed it")
        if call not in _told_graphs:
            _told_graphs.add(call)
            log.warning(
                "%s %s, in a graph (tf.function), acts on this process alone: this process comes later than the "
                "others, and what a graph returned to them is not recorded; where its result matters, call it outside "
                "of the tf.function",
                call,
                where,
            )

    def _alone(self, between: Between, call: str, do: Callable[[], Any], *, told: bool) -> Any:
        """Do what a process does for which nothing is replayed."""
        why, where = between.replay.why, _where(between)
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


def _where(between: Between) -> str:
    return f"after call {between.call}" if between.call else "before the first call"


def _tell_if_late(kind: str, library: Library) -> None:
    """Say once that the peers of a process without a State of ours take no part: they are in their training function.

    It is in their world already, so it cannot even act alone.
    """
    process = standby.current()
    if process.came_later:
        process.came_later = False
        log.warning(
            "hvd.%s() before the training function waits for the other processes, which are in theirs and do not take "
            "part: import %s, or run with --adopt, and it returns what it returned to them",
            kind,
            library.public,
        )


_told_graphs: Final[set[str]] = set()
_kept_own: Final[list[tuple[str, list[weakref.ref[Any]]]]] = []
"""Calls in which this process has kept its own values of large variables, since these were not recorded."""


def has_kept_own() -> bool:
    """Whether there is something for :func:`tell_of_variables_outside`."""
    return bool(_kept_own)


def tell_of_variables_outside(of_state: Iterable[object]) -> None:
    """Say once that variables have values of this process alone, if others than those in ``of_state`` were broadcast.
    Those of a State have the values of all once it has synced."""
    known = {id(each) for each in of_state}
    for call, variables in _kept_own:
        others = [each for reference in variables if (each := reference()) is not None and id(each) not in known]
        if others:
            log.warning(
                "%s before the training function left variables as this process has made them, such as %r (%d in "
                "all): they have too many bytes to be recorded, and are not in the State; put them into it",
                call,
                getattr(others[0], "name", "?"),
                len(others),
            )
    _kept_own.clear()


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
