"""The state of the job according to the journal: an immutable value, updated record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.report.timeline import names, number, text, values, whole


@dataclass(frozen=True, slots=True)
class World:
    """One world, and its journalled steps."""

    size: int
    cause: str
    hosts: tuple[str, ...]
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Worker:
    """A training process as the launcher announced it."""

    host: str
    slot: int
    rank: int
    """Its first rank."""
    pid: int


@dataclass(frozen=True, slots=True)
class Observed:
    """What the journal says of the job so far."""

    worlds: tuple[World, ...] = ()
    workers: tuple[Worker, ...] = ()
    steps: int = 0
    """Journalled steps."""
    step: int = 0
    """The newest of rank 0."""
    epoch: int = 0
    """The newest of rank 0."""
    loss: float | None = None
    """The newest of rank 0."""
    rank_0_host: str = ""
    refused: int = 0
    """How many host lists were refused."""
    lost: tuple[int, ...] = ()
    """Lost steps: an entry for each roll-back of any rank, and for each resume from a checkpoint."""
    sealed: tuple[int, ...] = ()
    """The step of each checkpoint."""
    sleeps: int = 0
    """How often it slept."""
    launchers: int = 0
    """How many launchers it has had."""
    launcher: int | None = None
    """The process of the last one."""
    finished: int | None = None
    """The job's exit code."""
    last: str = ""
    """The last event, in words."""

    @property
    def world(self) -> World:
        """The present world; of size 0 before the first."""
        return self.worlds[-1] if self.worlds else World(0, "", ())


def observe(seen: Observed, records: Iterable[Record]) -> Observed:
    """Fold records in, in the order of writing."""
    for record in records:
        again = record.event != "started" or seen.launchers
        fold = _FOLDS.get(record.event)
        if fold is not None:
            seen = fold(seen, record)
        if again and (last := _told(record)):
            seen = replace(seen, last=last)
    return seen


def _told(record: Record) -> str:
    """An important event in one line; "" for others."""
    kind, fields = EVENTS.get(record.event), record.fields
    if kind is None or not kind.row(fields):
        return ""
    if record.event == "resized":
        return f"{text(record.get('cause'))}: world of {whole(record.get('size')) or 0}"
    hosts = [host for key in kind.hosts for host in names(fields.get(key)) or (text(fields.get(key)),) if host]
    where = f" on {', '.join(hosts)}" if hosts else ""
    return ": ".join(filter(None, (f"{kind.title}{where}", text(kind.says(fields)))))


def _started(seen: Observed, record: Record) -> Observed:
    return replace(seen, launchers=seen.launchers + 1, launcher=whole(record.get("pid")))


def _resized(seen: Observed, record: Record) -> Observed:
    world = World(whole(record.get("size")) or 0, text(record.get("cause")), names(record.get("hosts")))
    return replace(seen, worlds=(*seen.worlds, world))


def _spawned(seen: Observed, record: Record) -> Observed:
    host, numbers = text(record.get("host")), [whole(record.get(key)) for key in ("slot", "rank", "pid")]
    slot, rank, pid = numbers
    if not host or slot is None or pid is None:
        return seen
    others = tuple(w for w in seen.workers if (w.host, w.slot) != (host, slot))
    return replace(seen, workers=(*others, Worker(host, slot, -1 if rank is None else rank, pid)))


def _exited(seen: Observed, record: Record) -> Observed:
    gone = (text(record.get("host")), whole(record.get("slot")))
    return replace(seen, workers=tuple(w for w in seen.workers if (w.host, w.slot) != gone))


def _stepped(seen: Observed, record: Record) -> Observed:
    observed, worlds = values(record), seen.worlds
    loss, epoch, step = number(observed.get("loss")), whole(observed.get("epoch")), whole(record.get("step"))
    size = whole(record.get("size"))
    # A late record of an earlier world is not progress of this one.
    if worlds and size in (None, worlds[-1].size):
        worlds = (*worlds[:-1], replace(worlds[-1], steps=worlds[-1].steps + 1))
    return replace(
        seen,
        worlds=worlds,
        steps=seen.steps + 1,
        step=seen.step if step is None else step,
        epoch=seen.epoch if epoch is None else epoch,
        loss=seen.loss if loss is None else loss,
        rank_0_host=text(record.get("host")) or seen.rank_0_host,
    )


def _rolled_back(seen: Observed, record: Record) -> Observed:
    return replace(seen, lost=(*seen.lost, whole(record.get("steps_lost")) or 0))


def _refused(seen: Observed, _: Record) -> Observed:
    return replace(seen, refused=seen.refused + 1)


def _sealed(seen: Observed, record: Record) -> Observed:
    step = whole(record.get("step"))
    return seen if step is None else replace(seen, sealed=(*seen.sealed, step))


def _slept(seen: Observed, _: Record) -> Observed:
    asleep = World(0, "asleep", ())
    return replace(seen, worlds=(*seen.worlds, asleep), workers=(), sleeps=seen.sleeps + 1)


def _resumed(seen: Observed, record: Record) -> Observed:
    step = whole(record.get("step"))
    lost = 0 if step is None else max(0, seen.step - step)
    return replace(seen, lost=(*seen.lost, lost))


def _finished(seen: Observed, record: Record) -> Observed:
    code = whole(record.get("code"))
    return replace(seen, finished=1 if code is None else code)


_FOLDS: Final[Mapping[str, Callable[[Observed, Record], Observed]]] = {
    "started": _started,
    "resized": _resized,
    "spawned": _spawned,
    "exited": _exited,
    "stepped": _stepped,
    "rolled_back": _rolled_back,
    "refused": _refused,
    "sealed": _sealed,
    "slept": _slept,
    "resumed": _resumed,
    "finished": _finished,
}
