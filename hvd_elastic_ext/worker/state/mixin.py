"""The methods of a State as Horovod knows them, in front of a Keeper."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

from torch import optim

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.messages.slot_protocol import COMMITS
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.commits import inherited
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.comms import choose
from hvd_elastic_ext.worker.parts import Part, torch_parts
from hvd_elastic_ext.worker.parts.handler_part import HandlerPart
from hvd_elastic_ext.worker.parts.snapshot_part import SnapshotPart
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.state import observed
from hvd_elastic_ext.worker.state.arguments import check_has_state, check_mixin
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.held_commit import HeldCommit
from hvd_elastic_ext.worker.state.journal import reporter_for
from hvd_elastic_ext.worker.state.keeper import Keeper
from hvd_elastic_ext.worker.state.settings import WorkerSettings
from hvd_elastic_ext.worker.state.user_files import Checkpoint
from hvd_elastic_ext.worker.stock import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, notification_manager
from hvd_elastic_ext.worker.sync.commit_interval import CommitSchedule
from hvd_elastic_ext.worker.sync.host_updates import HostsUpdate, Inbox

log = logging.getLogger(__name__)

_OWN = frozenset(vars(stock.State(None, None))) | {"_keeper", "_snapshot", "_handlers"}
"""Attributes of a State that are no state."""


class StateMethods:
    """``commit``, ``save``, ``restore``, ``sync`` and the rest of Horovod's State, kept by ``_keeper``."""

    _keeper: Keeper

    def commit(self) -> None:
        """Commit everything to memory, and look for host updates.

        Where commits cost more than they save the launcher may have only every n-th call commit
        (``--commit-every``), on all ranks the same ones; the others only look.
        """
        if self._keeper.schedule.due():
            super().commit()  # type: ignore[misc]
        else:
            self.check_host_updates()

    def save(self) -> None:
        """Commit everything to memory, without looking for host updates."""
        self._keeper.save()

    def restore(self) -> None:
        """Return everything to the last commit; doing it twice gives the same bytes.

        Horovod's loop and ours call this when a peer was lost; what is under way in
        that world is dropped then. Called by yourself, it leaves the world alone.
        """
        self._keeper.restore(world_lost=isinstance(sys.exc_info()[1], HorovodInternalError))

    def sync(self) -> None:
        """Bring every rank to the newest commit of any rank. A rank first commits its changes."""
        self._keeper.sync()

    def check_host_updates(self) -> None:
        """Raise Horovod's ``HostsUpdatedInterrupt`` on all ranks if any of them has received a change of hosts.

        Every rank must call it at the same points, best after each step. Between the backward passes of one step it
        waits for the step. Everything has been committed when it raises, and the interrupt never asks to skip the sync.
        """
        if self._keeper.hosts_changed():
            raise HostsUpdatedInterrupt(skip_sync=False)

    def observe(self, **signals: float) -> None:
        """Report signals to the launcher, for ``--autoscale``: ``state.observe(queue=len(waiting))``.

        Values of rank 0 count, until it reports new ones. ``noise_scale`` is the gradient noise scale, in batches of
        one host; any other name can be a signal of the policy ``threshold``. Raises :class:`UsageError` for a value
        that is no finite number, and for more than 16 names.
        """
        observed.observe(standby.current().link.status, signals)

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Horovod's notification thread calls this; times are not compared, so none is ever too old."""
        self._keeper.inbox.put()

    def ended(self) -> None:
        """Our loop calls this when the training function has returned, or raised."""
        self._keeper.ended()

    def _returned(self) -> None:
        """Loops call this when the training function has returned, before they say that training is done."""
        self._keeper.returned()

    def on_hosts_update(self, update: HostsUpdate) -> None:
        """Launchers that number their sets of hosts call this, from any thread; what comes twice or late is dropped."""
        self._keeper.inbox.put(update)

    def on_reset(self) -> None:
        """A new world has formed: run the reset callbacks. Notices that came meanwhile are kept."""
        self._keeper.inbox.entered(standby.current().generation)
        super().on_reset()  # type: ignore[misc]

    def fingerprint(self) -> str:
        """Hash all shared state: after a sync it is the same on every rank."""
        return self._keeper.fingerprint()

    def __setattr__(self, name: str, value: Any) -> None:
        keeper = self.__dict__.get("_keeper")
        if keeper is not None and isinstance(value, Checkpoint):
            raise UsageError(f"state.{name}: an elastic.Checkpoint is given before a State is built, or used")
        changed = keeper is not None and keeper.assigning(name, value)
        super().__setattr__(name, value)
        if changed:
            self._keeper.assigned()


class ElasticMixin(StateMethods):
    """Our guarantees for a State that exists: ``class MyState(ElasticMixin, MyOldState)``.

    The old class's ``save`` and ``restore`` do what they did; what ``save`` puts into attributes is committed and put
    back before each ``restore``, deeply. Models, optimizers and samplers given to Horovod's ``TorchState`` are kept as
    ours keeps them; handlers registered with Horovod still work. An overridden ``sync`` runs too, among ranks that
    hold the same already. An attribute ``checkpoint``, of the class or set in ``__init__``, that is an
    ``elastic.Checkpoint`` says what checkpoints are made of, as with ``elastic.TorchState``; anything else of that name
    is the user's own.
    """

    comms: ClassVar[str] = "auto"
    """The library whose world this is; override it in the class."""
    rng: ClassVar[bool] = True
    """Commit this rank's random generators."""
    merged: ClassVar[tuple[str, ...]] = ()
    """Attributes in which each rank has something of its own until ``sync`` merges it over the ranks."""

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

    def _made(self) -> Keeper:
        check_has_state(type(self), stock.State)
        names = torch_parts.ParameterNames()
        handlers = self.__dict__.get("_handlers", {})
        parts = {name: _part_behind(handler, names) for name, handler in handlers.items()}
        if handlers:
            self.__dict__["_handlers"] = {}
        parts |= self._parts_among_values(names)
        kind: Any = type(self)
        mine = self.__dict__.get("checkpoint", getattr(kind, "checkpoint", None))
        functions = mine if isinstance(mine, Checkpoint) else None
        old: Any = super(StateMethods, self)  # the class behind the mixin
        snapshot = SnapshotPart(
            self,
            save=old.save,
            restore=old.restore,
            sync=old.sync if _has_own_sync(type(self)) else None,
            ignored=_OWN | parts.keys() | ({"checkpoint"} if functions is not None else set()),
            merged=kind.merged,
        )
        self.__dict__["_snapshot"] = snapshot
        parts = {"": snapshot, **parts}
        return keeper_for(self, parts, values=(), names=names, rng=kind.rng, comms=kind.comms, checkpoint=functions)

    def _parts_among_values(self, names: torch_parts.ParameterNames) -> dict[str, Part]:
        """What Horovod's ``ObjectState`` holds as plain values and we by state: copies of schedulers steer nothing."""
        values = self.__dict__.get("_saved_state") if isinstance(self, ObjectState) else None
        if not isinstance(values, dict):
            return {}
        found = {name: torch_parts.part_for(getattr(self, name, None), names) for name in values}
        parts = {name: part for name, part in found.items() if part is not None}
        self.__dict__["_saved_state"] = {name: value for name, value in values.items() if name not in parts}
        return parts


def _part_behind(handler: Any, names: torch_parts.ParameterNames) -> Part:
    """Ours for what one of Horovod's handlers keeps; a user's own handler stays."""
    own = torch_parts.part_for(handler.value, names) if type(handler) in stock.HANDLERS else None
    return own or HandlerPart(handler)


def _has_own_sync(kind: type) -> bool:
    theirs = kind.__mro__[kind.__mro__.index(ElasticMixin) + 1 :]
    first = next(base for base in theirs if "sync" in vars(base))
    return first not in (ObjectState, stock.State, stock.TorchState)


def keeper_for(
    owner: Any,
    parts: Mapping[str, Part],
    *,
    values: Sequence[str],
    names: torch_parts.ParameterNames,
    rng: bool,
    comms: str,
    checkpoint: Checkpoint | None,
) -> Keeper:
    """A Keeper for a State whose attributes are ``parts`` and the plain ``values``; ``names`` as given to the parts."""
    settings = WorkerSettings.from_environ(os.environ)
    library = choose.init(comms)
    inventory = Inventory(owner, parts, names=values, part_for=partial(part_for, names=names))
    names.models = inventory.models
    clock, process = SystemClock(), standby.current()
    link, buffer = process.link, CommitBuffer(open_sides(_descriptors()))
    held = HeldCommit(buffer, link) if buffer.can_keep else None
    schedule = CommitSchedule()
    if held is not None:
        schedule = CommitSchedule(link.status, named=lambda: held.is_requested)
        process.on_keep, process.on_commit_interval = held.request, schedule.asked
    keeper = Keeper(
        inventory,
        buffer=buffer,
        comms=library,
        reporter=reporter_for(settings, clock, link),
        clock=clock,
        status=link.status,
        held=held,
        checkpoint=checkpoint,
        schedule=schedule,
        world=lambda: process.generation or 0,
        settings=settings,
        program=_program(),
        keep_rng=rng,
    )
    keeper.seal = owner.save
    _EARLY.hand_over(keeper.inbox)
    return keeper


def _program() -> str:
    """Tells this program from others that run in the same slot, one after the other; restarts of it are alike."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return hashlib.blake2b("\0".join([main, *sys.argv]).encode(), digest_size=8).hexdigest()


_handed_out: list[bool] = []


def _descriptors() -> tuple[int, ...] | None:
    """Memory that outlives this process, for its first State; any further one has memory of its own."""
    if _handed_out:
        if os.environ.get(COMMITS):
            log.warning(
                "this process has another State: only its first one outlives it, and is what checkpoints hold; "
                "put everything into one State"
            )
        return None
    _handed_out.append(True)
    found = inherited.commit_descriptors(os.environ)
    lost = [descriptor for descriptor in found or () if not inherited.is_memory(descriptor)]
    if lost:
        # For example, a program in between has closed the descriptors: training must not fail for that.
        log.warning(
            "commit memory: %s=%s did not reach this process, its commits end with it; "
            "start training processes with the descriptors of their parent",
            COMMITS,
            os.environ.get(COMMITS),
        )
        return None
    return found


def part_for(value: object, names: torch_parts.ParameterNames) -> Part | None:
    """A handler the user registered with Horovod goes first; Horovod's own three are replaced by ours."""
    for kind, handler in stock.registered_handlers():
        if handler not in stock.HANDLERS and isinstance(value, kind):
            return HandlerPart(handler(value))
    return torch_parts.part_for(value, names)


class _Early:
    """Receives notices from the import on, also before a State listens."""

    def __init__(self) -> None:
        self._before = 0
        self._inboxes: WeakSet[Inbox] = WeakSet()

    def hand_over(self, inbox: Inbox) -> None:
        """From now on ``inbox`` receives the notices, including earlier ones."""
        if self._before and not self._inboxes:
            inbox.put()
        self._inboxes.add(inbox)

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        self.on_hosts_update(None)

    def on_hosts_update(self, update: HostsUpdate | None) -> None:
        self._before += 1
        for inbox in list(self._inboxes):
            inbox.put(update)


_EARLY = _Early()
notification_manager.register_listener(_EARLY)
