"""The part of the job's state that a launcher saves for the next one, as one value, and the conversions.

It is a part of :class:`JobState`, with the same types. Agents report the rest when they connect again: what runs, how
far it is, and what memory holds. A saved copy of that would be older than their reports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.launcher.custody.custody import Stored
from hvd_elastic_ext.launcher.custody.holders import NotedCommit
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health import ledger_json
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.scaling.decide import Change, Memory
from hvd_elastic_ext.launcher.scaling.observations import SpeedLog
from hvd_elastic_ext.launcher.scaling.scaling import Scaling

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.custody.custody import Commit
    from hvd_elastic_ext.launcher.driver.options import JobOptions, ScaleOptions


class UnrecordedChange(NamedTuple):
    """A change of the world ``at`` a time (Unix seconds) whose journal line is not written yet: ``fields``."""

    generation: int
    at: float
    fields: Mapping[str, Any]


class SavedScaling(NamedTuple):
    """What ``--autoscale`` has asked for and learned: fields of :class:`Scaling`, and of what it holds.

    Times are seconds from :attr:`Saved.at`. ``counted``: the newest step that is in ``steps``; None if that is unknown.
    """

    since: float
    wanted: int | None = None
    by_hand: int | None = None
    leaving: tuple[str, ...] = ()
    unasked: bool = False
    steps: float = 0.0
    host_steps: float = 0.0
    counted: int | None = None
    pauses_s: tuple[float, ...] = ()
    changes: tuple[Change, ...] = ()
    steps_s: Mapping[int, tuple[float, ...]] = MappingProxyType({})
    busy_s: Mapping[int, tuple[float, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Saved:
    """The state that outlives a launcher. The defaults are those of a job without a launcher so far.

    ``incarnation``: of the launcher that saved it; ``generation``: of the newest world.
    """

    incarnation: int = 0
    generation: int = 0
    run: str | None = None
    """The name of the run."""
    ended: bool = False
    """The run has ended, and nothing of it may still run: the next launcher begins another one."""
    finished: bool = False
    """The job has ended, and all hosts were told to end."""
    at: float = 0.0
    """When :attr:`ledger` was saved (Unix seconds)."""
    ledger: HealthLedger = field(default_factory=HealthLedger)
    """Strikes and blocks. Its times are seconds from :attr:`at`: the next launcher has another monotonic clock."""
    hosts: tuple[Host, ...] = ()
    """Hosts with an agent, and those that could not be told to end; by name and slots only."""
    ports: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The port on which the launcher listened, by address."""
    only_here: str | None = None
    """As :attr:`Checkpoints.only_here`."""
    stored: Stored | None = None
    """As :attr:`Checkpoints.stored`, if its commit is known."""
    change: UnrecordedChange | None = None
    commits: tuple[NotedCommit, ...] = ()
    """The holders of the newest commit."""
    outcome: str | None = None
    """How the run has ended, in one line."""
    scaling: SavedScaling | None = None
    """None without ``--autoscale``."""
    refused: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """As :attr:`Calls.refused`."""
    recorded: tuple[Seat, ...] | None = None
    """As :attr:`Calls.recorded`, and the generation of the world that has kept it."""
    record_world: int = 0

    @property
    def hosts_left(self) -> tuple[Host, ...]:
        """Hosts on which processes may run, of a job that its launcher did not end."""
        return () if self.finished else self.hosts

    def checkpoint_in(self, place: str | None) -> str | None:
        """A checkpoint in ``place`` that exists only on the hosts that made it; None if there is none."""
        return self.only_here if _lies_in(place, self.only_here) else None


def saved_of(job: JobState, *, incarnation: int, ports: Mapping[str, int], wall: float, run: str | None) -> Saved:
    """The state for the next launcher, as of :attr:`JobState.now` and ``wall`` (Unix seconds)."""
    agents, unconnected = job.roster.agents.values(), job.shutdown.unconnected
    there = [*job.adoption.missing.values(), *unconnected.values(), *(agent.host for agent in agents)]
    change, stored = job.resize.change, job.checkpoints.stored
    return Saved(
        incarnation,
        job.generation,
        run,
        finished=job.outcome.over and not unconnected,
        at=wall,
        ledger=ledger_json.as_saved(job.faults.ledger, job.now),
        hosts=tuple(Host(name, slots) for name, slots in {host.name: host.slots for host in there}.items()),
        ports=MappingProxyType(dict(ports)),
        only_here=job.checkpoints.only_here,
        stored=None if stored is None or stored.commit is None else stored,
        change=None
        if change is None
        else UnrecordedChange(change.generation, wall - (job.now - change.at), dict(change.fields)),
        commits=_commits_of(job),
        scaling=None if job.options.scaling is None else _scaling_of(job),
        refused=MappingProxyType(dict(job.calls.refused)),
        recorded=None if job.calls.recorded is None else tuple(sorted(job.calls.recorded)),
        record_world=job.calls.record_world,
    )


def job_of(
    saved: Saved, options: JobOptions, *, now: float, wall: float, helper_number: int, expects: str | None = None
) -> JobState:
    """The state with which the next launcher begins, as of ``now`` (mono) and ``wall`` (Unix seconds).

    ``expects``: a checkpoint that exists. ``helper_number``: a number that no earlier launcher has used.
    """
    place = None if options.durability is None else options.durability.place
    return JobState.new(
        options,
        now,
        helper_number=helper_number,
        ledger=ledger_json.continued(saved.ledger, now, passed_s=wall - saved.at),
        generation=saved.generation,
        expects=expects,
        commits=saved.commits,
        stored=saved.stored if saved.stored is not None and _lies_in(place, saved.stored.path) else None,
        scaling=_continued(saved.scaling, options.scaling, now - (wall - saved.at)),
        refused=saved.refused,
        recorded=None if saved.recorded is None else (saved.recorded, saved.record_world),
    )


def _scaling_of(job: JobState) -> SavedScaling:
    state, now = job.scaling, job.now
    changes = (replace(change, at=change.at - now) for change in state.memory.changes)
    return SavedScaling(
        state.since - now,
        state.wanted,
        state.by_hand,
        tuple(sorted(state.leaving)),
        state.unasked,
        state.steps,
        state.host_steps,
        state.counted if state.seen is None else state.seen[1],
        tuple(map(_short, state.pauses_s)),
        tuple(changes),
        {size: tuple(map(_short, steps)) for size, steps in state.log.steps_s.items()},
        {size: tuple(map(_short, steps)) for size, steps in state.log.busy_s.items()},
    )


def _continued(saved: SavedScaling | None, options: ScaleOptions | None, at: float) -> Scaling | None:
    """``at``: when it was saved, by the clock of this launcher (mono)."""
    if saved is None or options is None:
        return None
    if not options.acts:
        saved = saved._replace(wanted=None, leaving=(), unasked=False)
    found = Scaling(
        at + saved.since,
        saved.wanted,
        saved.by_hand,
        frozenset(saved.leaving),
        saved.unasked,
        log=SpeedLog(saved.steps_s, saved.busy_s),
        memory=Memory(changes=tuple(replace(change, at=at + change.at) for change in saved.changes)),
        steps=saved.steps,
        host_steps=saved.host_steps,
        counted=saved.counted,
    )
    for seconds in saved.pauses_s:
        found.paused(seconds)
    return found


def _short(seconds: float) -> float:
    """Rounded: thousands of step times are in a file that is written often."""
    return float(f"{seconds:.4g}")


def _commits_of(job: JobState) -> tuple[NotedCommit, ...]:
    """All known commits in memory; of a job that has failed, the lost ones; of a job that is done, none."""
    commits, stored = job.roster.commits, job.checkpoints.stored
    if not job.outcome.over:
        return commits.noted()
    if job.outcome.failure is None or job.options.durability is None:
        return ()
    return commits.left_behind(None if stored is None else stored.commit)


def _lies_in(place: str | None, path: str | None) -> bool:
    return place is not None and path is not None and path.startswith(f"{place}/")


# --- as text


VERSION: Final = 2
PORTS: Final = 1 << 16


class NewerVersion(ValueError):
    """A newer hvd-elastic wrote the text."""


def to_text(saved: Saved) -> str:
    """One line that :func:`from_text` reads."""
    document = to_json(saved)
    return _text({**document, "sum": sum_of(document)}) + "\n"


def from_text(text: str) -> Saved:
    """What :func:`to_text` wrote. Raises ``ValueError``, one line, for anything else."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is int and version > VERSION:
        raise NewerVersion(f"a newer hvd-elastic wrote it, in version {version}; {VERSION} is known here")
    if type(version) is not int or version not in _READERS:
        raise ValueError("not a launcher's state of a version known here")
    if document.pop("sum", None) != sum_of(document):
        raise ValueError("its checksum is wrong")
    return from_json(document)


def sum_of(document: Mapping[str, Any]) -> str:
    """Protects against damage, not against attacks: a user who can write here can do anything."""
    return hashlib.sha256(_text(document).encode()).hexdigest()


def to_json(saved: Saved) -> dict[str, Any]:
    """As ``json.dumps`` takes it."""
    change, stored = saved.change, saved.stored
    return {
        "version": VERSION,
        "incarnation": saved.incarnation,
        "generation": saved.generation,
        "run": saved.run,
        "ended": saved.ended,
        "finished": saved.finished,
        "ledger": ledger_json.saved_to_json(saved.ledger, wall=saved.at),
        "hosts": {host.name: host.slots for host in saved.hosts},
        "ports": dict(saved.ports),
        "only_here": saved.only_here,
        "stored": None if stored is None else stored._asdict(),
        "change": None if change is None else {**change._asdict(), "fields": dict(change.fields)},
        "commits": [noted._asdict() for noted in saved.commits],
        "outcome": saved.outcome,
        "scaling": None if saved.scaling is None else _scaling_to_json(saved.scaling),
        "refused": {str(call): why for call, why in saved.refused.items()},
        "recorded": None if saved.recorded is None else [[seat.host, seat.slot] for seat in saved.recorded],
        "record_world": saved.record_world,
    }


def from_json(document: Mapping[str, Any]) -> Saved:
    """What :func:`to_json` wrote, here or in an earlier version. Raises ``ValueError``, one line, for anything else."""
    try:
        return _READERS[document["version"]](document)
    except KeyError as missing:
        raise ValueError(f"without {missing}") from None
    except (AttributeError, TypeError) as error:
        raise ValueError(f"with a part of the wrong kind: {error}") from None


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True, allow_nan=False)


# --- the versions


def _second(document: Mapping[str, Any]) -> Saved:
    ledger, at = ledger_json.saved_from_json(document["ledger"])
    stored, change, scaling = document["stored"], document["change"], document.get("scaling")
    return Saved(
        _count(document["incarnation"]),
        _count(document["generation"]),
        _word_or_none(document["run"]),
        _is(document["ended"], bool),
        _is(document["finished"], bool),
        at,
        ledger,
        _hosts(document["hosts"]),
        _ports(document["ports"]),
        _word_or_none(document["only_here"]),
        None if stored is None else _stored(stored["commit"], stored["step"], stored["path"]),
        None if change is None else _change(change),
        tuple(map(_noted, _is(document["commits"], list))),
        _word_or_none(document.get("outcome")),
        None if scaling is None else _scaling(scaling),
        _refused(document.get("refused", {})),
        None if (recorded := document.get("recorded")) is None else tuple(map(_seat, _is(recorded, list))),
        _count(document.get("record_world", 0)),
    )


def _first(document: Mapping[str, Any]) -> Saved:
    ledger, more = document["ledger"], _is(document["more"], dict)
    health, at = (HealthLedger(), 0.0) if ledger is None else ledger_json.saved_from_json(ledger)
    stored, change = more.get("stored"), more.get("resized")
    return Saved(
        _count(document["incarnation"]),
        _count(document["generation"]),
        _word_or_none(more.get("run")),
        _is(more.get("ended", False), bool),
        _is(more.get("finished", False), bool),
        at,
        health,
        _hosts(more.get("hosts", {})),
        _ports(more.get("ports", {})),
        _word_or_none(more.get("checkpoint")),
        None if stored is None or stored[0] is None else _stored(*stored),
        None if change is None else _change(change),
        tuple(map(_noted, _is(more.get("commits", []), list))),
    )


_READERS: Final = {1: _first, VERSION: _second}


# --- the parts


def _is(value: Any, kind: type) -> Any:
    """``value``, of exactly this kind."""
    if type(value) is not kind:
        raise ValueError(f"with {str(value)[:40]!r} where a {kind.__name__} belongs")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"with {str(value)[:40]!r} where a number belongs that is not negative")
    return value


def _word_or_none(value: Any) -> str | None:
    return None if value is None else str(_is(value, str))


def _hosts(value: Any) -> tuple[Host, ...]:
    return tuple(Host(name, _count(slots)) for name, slots in value.items())


def _ports(value: Any) -> Mapping[str, int]:
    ports = {address: _count(port) for address, port in value.items()}
    if any(not 0 < port < PORTS for port in ports.values()):
        raise ValueError("with an invalid port")
    return MappingProxyType(ports)


def _refused(value: Any) -> Mapping[int, str]:
    return MappingProxyType({int(call): _is(why, str) for call, why in _is(value, dict).items()})


def _seat(value: Any) -> Seat:
    host, slot = value
    return Seat(_is(host, str), _count(slot))


def _commit(value: Any) -> Commit:
    incarnation, generation, number = (_is(part, int) for part in value)
    return incarnation, generation, number


def _stored(commit: Any, step: Any, path: Any) -> Stored:
    return Stored(_commit(commit), _is(step, int), _is(path, str))


def _change(value: Any) -> UnrecordedChange:
    fields = _is(value["fields"], dict)
    _ = fields["steps_lost"]
    return UnrecordedChange(_is(value["generation"], int), float(value["at"]), fields)


def _noted(value: Any) -> NotedCommit:
    reached = value["reached"]
    return NotedCommit(
        _is(value["host"], str),
        _is(value["agent"], str),
        _commit(value["commit"]),
        _is(value["step"], int),
        None if reached is None else _is(reached, int),
        _is(value.get("loss_reported", False), bool),
        _word_or_none(value["gone"]),
    )


def _scaling_to_json(saved: SavedScaling) -> dict[str, Any]:
    changes = [[each.at, each.before, each.after, each.trial] for each in saved.changes]
    times = {name: {str(size): list(of) for size, of in getattr(saved, name).items()} for name in ("steps_s", "busy_s")}
    return {**saved._asdict(), "leaving": list(saved.leaving), "changes": changes, **times}


def _scaling(value: Any) -> SavedScaling:
    return SavedScaling(
        _number(value["since"]),
        _count_or_none(value["wanted"]),
        _count_or_none(value["by_hand"]),
        tuple(_is(name, str) for name in value["leaving"]),
        _is(value["unasked"], bool),
        _number(value["steps"]),
        _number(value["host_steps"]),
        _count_or_none(value["counted"]),
        tuple(map(_number, value["pauses_s"])),
        tuple(map(_size_change, value["changes"])),
        _times(value["steps_s"]),
        _times(value["busy_s"]),
    )


def _size_change(value: Any) -> Change:
    at, before, after, *more = value  # without the last field in files of earlier versions
    return Change(_number(at), _count(before), _count(after), trial=_is(more[0], bool) if more else False)


def _times(value: Any) -> dict[int, tuple[float, ...]]:
    return {int(size): tuple(map(_number, of)) for size, of in value.items()}


def _number(value: Any) -> float:
    if (found := finite_number(value)) is None:
        raise ValueError(f"with {str(value)[:40]!r} where a number belongs")
    return found


def _count_or_none(value: Any) -> int | None:
    return None if value is None else _count(value)
