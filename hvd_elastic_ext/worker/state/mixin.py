"""The methods of Horovod's State, which call a Keeper."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final
from weakref import WeakSet

from torch import optim

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.calls.calls import current as current_calls
from hvd_elastic_ext.worker.calls.result import program
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.parts import Part, tensorflow_parts
from hvd_elastic_ext.worker.parts.choose import part_behind, part_for, part_of_ours
from hvd_elastic_ext.worker.parts.torch_parts import ModelPart, ParameterNames
from hvd_elastic_ext.worker.parts.user_parts import SnapshotPart
from hvd_elastic_ext.worker.patches.horovod_hook import ADOPT
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.state.arguments import (
    check_has_state,
    check_mixin,
    check_options,
    check_values,
    not_kept,
    unknown,
)
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.journal import reporter_for
from hvd_elastic_ext.worker.state.keeper import Keeper, WorkerSettings
from hvd_elastic_ext.worker.state.slot_memory import SLOT, Memory
from hvd_elastic_ext.worker.state.user_files import Checkpoint, chosen
from hvd_elastic_ext.worker.stock import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, notification_manager
from hvd_elastic_ext.worker.sync.commit_interval import CommitSchedule
from hvd_elastic_ext.worker.sync.host_updates import HostsUpdate, Inbox

log = logging.getLogger(__name__)

NOT_GIVEN: Final = object()
"""In place of an argument that may be anything."""
_OWN = frozenset(vars(stock.State(None, None))) | {"_keeper", "_snapshot", "_handlers"}
"""Attributes of a State that are not kept."""


class StateMethods:
    """``commit``, ``save``, ``restore``, ``sync`` and the rest of Horovod's State, kept by ``_keeper``."""

    _keeper: Keeper

    def commit(self) -> None:
        """Commit everything to memory, and look for host updates.

        If commits cost more time than they save, the launcher may let only every n-th call commit
        (``--commit-every``). These are the same calls on all ranks; the other calls only look. Where ranks train alone
        between averages, a call averages if that is due, and commits the average.
        """
        self._keeper.commit_called()
        if self._keeper.commits_averages:
            self.check_host_updates()
        elif self._keeper.schedule.due():
            super().commit()  # type: ignore[misc]
            self._keeper.agree_on_shares()
        else:
            self.check_host_updates()

    def save(self) -> None:
        """Commit everything to memory, without looking for host updates."""
        self._keeper.save()

    def restore(self) -> None:
        """Return everything to the last commit. A second call gives the same bytes.

        Horovod's loop and ours call this after the loss of a peer; then it also drops the
        pending operations of that world. A call by the script does not change the world.
        """
        self._keeper.restore(world_lost=isinstance(sys.exc_info()[1], HorovodInternalError))

    def sync(self) -> None:
        """Bring every rank to the newest commit of any rank. A rank first commits its changes."""
        self._keeper.sync()

    def check_host_updates(self) -> None:
        """Raise Horovod's ``HostsUpdatedInterrupt`` on all ranks if any of them has received a change of hosts.

        Every rank must call it at the same points, best after each step. Between the backward passes of one step it
        does not raise. When it raises, everything is committed, and the interrupt never requests to skip the sync.
        """
        if self._keeper.hosts_changed():
            raise HostsUpdatedInterrupt(skip_sync=False)

    def observe(self, **signals: float) -> None:
        """Report signals to the launcher, for ``--autoscale``: ``state.observe(queue=len(waiting))``.

        Only values of rank 0 count, until it reports new ones. ``noise_scale``: the gradient noise scale, in batches of
        one host. The policy ``threshold`` can use any other name. Raises :class:`UsageError` for a value that is not a
        finite number, and for more than 16 names.
        """
        standby.current().link.status.observe(signals)

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Receive a notice, on Horovod's notification thread. Times are not compared, so no notice is too old."""
        self._keeper.inbox.put()

    def _finish_rounds(self) -> None:
        """Average what is left when the training function has returned, where ranks train alone between averages.

        Loops call this. Raises the interrupts of :meth:`check_host_updates`, and of a lost peer.
        """
        if self._keeper.finish_rounds():
            raise HostsUpdatedInterrupt(skip_sync=False)

    def ended(self) -> None:
        """Note the end of the training function, by a return or an error. Our loop calls this."""
        self._keeper.ended()

    def _training(self) -> AbstractContextManager[None]:
        """Context around a training function and :meth:`_finish_rounds`. Our loop is in it."""
        return self._keeper.training()

    def _begin_call(self) -> None:
        """Note that the present training call runs with this State. Loops call this before the first sync."""
        self._keeper.begin_call()

    def _returned(self) -> None:
        """Note that the training function has returned. Loops call this before they report the end of training."""
        self._keeper.returned()

    def _left(self) -> None:
        """Note that the script ends within the training function, with exit code 0. Loops call this."""
        self._keeper.left()

    def on_hosts_update(self, update: HostsUpdate) -> None:
        """Receive a numbered notice, on any thread. Drop one that comes twice or late."""
        self._keeper.inbox.put(update)

    def on_reset(self) -> None:
        """Note a new world: run the reset callbacks. Keep the notices that have come meanwhile."""
        self._keeper.inbox.entered(standby.current().generation)
        super().on_reset()  # type: ignore[misc]

    def _drop_steps(self) -> None:
        """Drop steps under way, whose world has ended."""
        self._keeper.drop_steps()

    def fingerprint(self) -> str:
        """Hash all shared state: after a sync it is the same on every rank."""
        return self._keeper.fingerprint()

    def __setattr__(self, name: str, value: Any) -> None:
        keeper = self.__dict__.get("_keeper")
        if keeper is not None and isinstance(value, Checkpoint):
            raise UsageError(f"state.{name}: an elastic.Checkpoint must be given before a State is built, or used")
        changed = keeper is not None and keeper.assigning(name, value)
        super().__setattr__(name, value)
        if changed:
            self._keeper.assigned()


class KeywordState(StateMethods):
    """A State whose arguments become its attributes."""

    def _keep(
        self,
        given: dict[str, Any],
        *,
        rng: Any,
        comms: Any,
        checkpoint: Any,
        begin: Callable[..., None],
        parts: Mapping[str, Part] = MappingProxyType({}),
    ) -> None:
        """Keep the values ``given``, by name. ``begin``: the rest of the initialisation, which gets the plain ones.
        ``parts``: of values whose part the caller chooses.

        ``rng``, ``comms`` and ``checkpoint`` of other types than those of the options are values, too: scripts for
        Horovod's State may have values of these names.
        """
        if not isinstance(rng, bool):
            given["rng"], rng = rng, True
        if not isinstance(comms, str):
            given["comms"], comms = comms, "auto"
        functions = None if checkpoint is NOT_GIVEN else chosen(checkpoint)
        if functions is None and checkpoint is not NOT_GIVEN:
            given["checkpoint"] = checkpoint
        check_values(type(self), given)
        if os.environ.get(ADOPT) != "1":
            check_options(type(self), given)
        names = ParameterNames()
        parts_of = {name: part_for(value, names) for name, value in given.items() if name not in parts}
        kept = {name: part for name, part in parts_of.items() if part is not None} | dict(parts)
        values = {name: value for name, value in given.items() if name not in kept}
        begin(**values)  # only the plain values: Horovod's class would copy everything else again
        for name in ("model", "optimizer"):
            if name in kept:
                self.__dict__.get("_saved_state", {}).pop(name, None)
        for name, part in kept.items():
            setattr(self, name, part.value)
        self._keeper = keeper_for(
            self, kept, values=tuple(values), names=names, rng=rng, comms=comms, checkpoint=functions
        )

    def __getattr__(self, name: str) -> Any:
        keeper = self.__dict__.get("_keeper")
        raise unknown(self, name, () if keeper is None else keeper.names)

    def __setattr__(self, name: str, value: Any) -> None:
        keeper = self.__dict__.get("_keeper")
        new = keeper is not None and name not in self.__dict__ and not name.startswith("_")
        super().__setattr__(name, value)
        if keeper is not None and new and name not in keeper.names and not hasattr(type(self), name):
            log.warning("%s", not_kept(name, keeper.names))

    def save(self) -> None:
        """Commit everything to memory, without a check for host updates."""
        super().save()
        self._saved_state = self._keeper.values()


class ElasticMixin(StateMethods):
    """Adds our guarantees to an existing State: ``class MyState(ElasticMixin, MyOldState)``.

    The old class's ``save`` and ``restore`` still work. The attributes in which ``save`` saves are committed, and
    restored as deep copies before each ``restore``. Models, optimizers, samplers and variables of Horovod's States are
    kept as in ours; handlers registered with Horovod still work. An overridden ``sync`` also runs, among ranks that
    already hold the same state. If an attribute ``checkpoint``, of the class or set in ``__init__``, is an
    ``elastic.Checkpoint``, it writes the checkpoints, as with ``elastic.TorchState``. Another value of that name is
    the user's own.
    """

    comms: ClassVar[str] = "auto"
    """The library of the world; override it in the class."""
    rng: ClassVar[bool] = True
    """Whether to commit this rank's random generators."""
    merged: ClassVar[tuple[str, ...]] = ()
    """Attributes in which each rank has its own value until ``sync`` merges these over the ranks."""
    rehearse: ClassVar[bool] = True
    """Whether a process of TensorFlow that joins others does a step before; see ``TensorFlowKerasState``."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_mixin(cls, ElasticMixin, stock.State, StateMethods)

    def __getattr__(self, name: str) -> Any:
        if name == "_keeper":  # built at the first use, which is late enough for the user's __init__
            keeper = self.__dict__["_keeper"] = self._made()
            return keeper
        theirs = getattr(super(), "__getattr__", None)
        if theirs is not None:
            return theirs(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        snapshot = self.__dict__.get("_snapshot")
        if snapshot is not None:
            snapshot.assigned(name)
        super().__setattr__(name, value)
        if isinstance(value, optim.Optimizer) and "_keeper" in self.__dict__:
            self._keeper.optimizers_changed()

    def _rehearse(self, train: Callable[[], object]) -> None:
        if type(self).rehearse and stock.FRAMEWORK == "tensorflow":
            self._keeper.rehearse(train)

    def _made(self) -> Keeper:
        check_has_state(type(self), stock.State)
        names = ParameterNames()
        handlers = self.__dict__.get("_handlers", {})
        parts = {name: part_behind(handler, names) for name, handler in handlers.items()}
        if handlers:
            self.__dict__["_handlers"] = {}
        parts |= self._parts_among_values(names)
        of_tensorflow, copies = tensorflow_parts.of_horovods_state(self)
        parts |= of_tensorflow
        kind: Any = type(self)
        mine = self.__dict__.get("checkpoint", getattr(kind, "checkpoint", None))
        functions = mine if isinstance(mine, Checkpoint) else None
        old: Any = super(StateMethods, self)  # the class behind the mixin
        snapshot = SnapshotPart(
            self,
            save=old.save,
            restore=old.restore,
            sync=old.sync if _has_own_sync(type(self)) else None,
            ignored=_OWN | parts.keys() | copies | ({"checkpoint"} if functions is not None else set()),
            merged=kind.merged,
        )
        self.__dict__["_snapshot"] = snapshot
        parts = {"": snapshot, **parts}
        return keeper_for(self, parts, values=(), names=names, rng=kind.rng, comms=kind.comms, checkpoint=functions)

    def _parts_among_values(self, names: ParameterNames) -> dict[str, Part]:
        """Return parts for values that Horovod's ``ObjectState`` copies: a scheduler's copy would have no effect."""
        values = self.__dict__.get("_saved_state") if isinstance(self, ObjectState) else None
        if not isinstance(values, dict):
            return {}
        parts_of = {name: part_of_ours(getattr(self, name, None), names) for name in values}
        parts = {name: part for name, part in parts_of.items() if part is not None}
        self.__dict__["_saved_state"] = {name: value for name, value in values.items() if name not in parts}
        return parts


def _has_own_sync(kind: type) -> bool:
    theirs = kind.__mro__[kind.__mro__.index(StateMethods) + 1 :]
    first = next(base for base in theirs if "sync" in vars(base))
    return first not in (ObjectState, stock.State, stock.TorchState) and not first.__module__.startswith("horovod.")


def keeper_for(
    owner: Any,
    parts: Mapping[str, Part],
    *,
    values: Sequence[str],
    names: ParameterNames,
    rng: bool,
    comms: str,
    checkpoint: Checkpoint | None,
) -> Keeper:
    """Return a Keeper for a State with the attributes ``parts`` and ``values`` (plain); ``names``: as in the parts."""
    settings = WorkerSettings.from_environ(os.environ)
    library = current_world.init(comms)
    inventory = Inventory(owner, parts, names=values, part_for=partial(part_for, names=names))
    names.models = partial(inventory.values_of, ModelPart)
    clock, process, calls = SystemClock(), standby.current(), current_calls()
    link = process.link
    memory = SLOT.for_new(calls.upcoming) or Memory(CommitBuffer(open_sides(None)), None, CommitSchedule())
    calls.check_program(ours=SLOT.ours)
    keeper = Keeper(
        inventory,
        buffer=memory.buffer,
        comms=library,
        reporter=reporter_for(settings, clock, link),
        clock=clock,
        status=link.status,
        held=memory.held,
        checkpoint=checkpoint,
        schedule=memory.schedule,
        world=lambda: process.generation or 0,
        settings=settings,
        program=program(),
        keep_rng=rng,
        calls=calls,
        takes_memory=lambda: SLOT.for_call_of(keeper, calls.number),
    )
    SLOT.made(keeper)
    keeper.seal = owner.save
    _EARLY.hand_over(keeper.inbox)
    return keeper


class _Early:
    """Receives notices from the import on, also before there is a State."""

    def __init__(self) -> None:
        self._kept = False
        """Whether there is a notice that no State has received."""
        self._inboxes: WeakSet[Inbox] = WeakSet()

    def hand_over(self, inbox: Inbox) -> None:
        """Send all notices to ``inbox`` from now on, and those that no State has received."""
        if self._kept:
            inbox.put()
        self._kept = False
        self._inboxes.add(inbox)

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        self.on_hosts_update(None)

    def on_hosts_update(self, update: HostsUpdate | None) -> None:
        inboxes = list(self._inboxes)
        self._kept = self._kept or not inboxes
        for inbox in inboxes:
            inbox.put(update)


_EARLY = _Early()
notification_manager.register_listener(_EARLY)
