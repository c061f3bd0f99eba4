"""Commit, roll back and sync over named parts: everything a State does that is not PyTorch or Horovod."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.fingerprint import fingerprint
from hvd_elastic_ext.worker.inbox import Inbox
from hvd_elastic_ext.worker.report import Reporter, plain
from hvd_elastic_ext.worker.steps import StepCount
from hvd_elastic_ext.worker.torch_parts import OptimizerPart, Part


@dataclass(frozen=True, slots=True)
class Commit:
    """One consistent point in time. ``number`` counts commits, ``step`` optimizer steps."""

    number: int
    step: int
    parts: Mapping[str, Any]
    values: Mapping[str, Any]


class Keeper:
    """Keeps the parts and plain attributes of one State.

    ``owner`` carries the plain values as attributes named in ``names``;
    ``part_for`` says how to keep a value that is assigned later.
    """

    def __init__(
        self,
        owner: object,
        parts: Mapping[str, Part],
        *,
        names: tuple[str, ...],
        part_for: Callable[[object], Part | None],
        comms: Comms,
        reporter: Reporter,
    ) -> None:
        self._owner = owner
        self._parts = dict(parts)
        self._names = list(names)
        self._part_for = part_for
        self._comms = comms
        self._reporter = reporter
        self.inbox = Inbox()
        self._steps = StepCount(self._stepped)
        self._steps.watch(self._counted_optimizer())
        self._commit = self._capture(number=0)

    @property
    def committed_values(self) -> Mapping[str, Any]:
        """The plain values of the last commit."""
        return self._commit.values

    def save(self) -> None:
        """Take a commit. The previous one stays whole until this one is."""
        self._steps.between()
        self._commit = self._capture(number=self._commit.number + 1)
        if self._reporter.due("committed") and self._comms.rank() == 0:
            self._record("committed", number=self._commit.number, values=plain(self._values()))

    def restore(self) -> None:
        """Return everything to the last commit."""
        lost = self._steps.done - self._commit.step
        for name, part in self._parts.items():
            part.restore(self._commit.parts[name])
        self._assign(copy.deepcopy(dict(self._commit.values)))
        self._steps.done = self._commit.step
        self._steps.between()
        self.inbox.leave()
        self._record("rolled_back", steps_lost=lost)

    def sync(self) -> None:
        """Make everything rank 0's live state. Live throughout: weights never travel with older counters."""
        for name, part in self._parts.items():
            part.sync(self._comms, name=name)
        mine = {"values": self._values(), "step": self._steps.done, "number": self._commit.number}
        root = self._comms.broadcast_object(mine, name="values")
        if root is not mine:
            self._assign(root["values"])
            self._steps.done = root["step"]
            self._commit = replace(self._commit, number=root["number"])
        self._steps.between()

    def synced(self) -> None:
        """Journal that the world agreed."""
        if self._reporter.active and self._comms.rank() == 0:
            self._record("synced", values=plain(self._values()))

    def hosts_changed(self) -> bool:
        """Ask every rank whether it has heard of a change; the same answer on all."""
        changed = self._comms.max(min(self.inbox.pending, 1), name="hosts_changed") > 0
        if changed:
            self.inbox.leave()
        return changed

    def fingerprint(self) -> str:
        """Hash everything that is shared: equal on every rank after a sync."""
        live = {name: part.capture() for name, part in self._parts.items()}
        return fingerprint({"parts": live, "values": self._values(), "step": self._steps.done})

    def assigning(self, name: str, value: object) -> None:
        """The user is about to set ``owner.name``: a new model or optimizer replaces the old one in the commit too."""
        part = self._parts.get(name)
        if part is None and name not in self._names:
            return
        if part is not None and part.value is value:
            return
        new = self._part_for(value)
        if part is None and new is None:
            return
        self._replace(name, value, new)

    def _replace(self, name: str, value: object, new: Part | None) -> None:
        parts, values = dict(self._commit.parts), dict(self._commit.values)
        self._parts.pop(name, None)
        parts.pop(name, None)
        values.pop(name, None)
        if name in self._names:
            self._names.remove(name)
        if new is not None:
            self._parts[name], parts[name] = new, new.capture()
        else:
            self._names.append(name)
            values[name] = copied(name, value)
        self._commit = replace(self._commit, parts=parts, values=values)
        self._steps.watch(self._counted_optimizer())

    def _capture(self, *, number: int) -> Commit:
        return Commit(
            number=number,
            step=self._steps.done,
            parts={name: part.capture() for name, part in self._parts.items()},
            values={name: copied(name, value) for name, value in self._values().items()},
        )

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self._owner, name) for name in self._names}

    def _assign(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self._owner, name, value)

    def _counted_optimizer(self) -> Any:
        """The optimizer whose steps are the job's steps: the one called ``optimizer``, else the first."""
        found = {name: part.value for name, part in self._parts.items() if isinstance(part, OptimizerPart)}
        return found.get("optimizer", next(iter(found.values()), None))

    def _stepped(self) -> None:
        if self._reporter.due("stepped") and self._comms.rank() == 0:
            self._record("stepped", values=plain(self._values()))

    def _record(self, event: str, **fields: Any) -> None:
        if not self._reporter.active:
            return
        where = {"rank": self._comms.rank(), "size": self._comms.size()}
        self._reporter.record(event, step=self._steps.done, **where, **fields)


def copied(name: str, value: Any) -> Any:
    """Copy a plain value through and through. Raises :class:`Permanent` if it cannot be."""
    try:
        return copy.deepcopy(value)
    except (TypeError, NotImplementedError, RuntimeError, copy.Error) as error:
        raise Permanent(
            f"state.{name} ({type(value).__name__}) cannot be committed: {error}; "
            "give it state_dict and load_state_dict, or keep it outside the State"
        ) from error
