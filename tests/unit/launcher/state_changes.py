"""The changes that an event or a planner makes to a small job, as lines of text: first the state, then the actions."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.driver.actions import Record
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.driver.roster import Agent, Roster, Worker
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Rendezvous, Seat, places
from hvd_elastic_ext.launcher.membership.world_change import Stage
from tests.unit.launcher.simulated_cluster import JobOptions

NOW: Final = 100.0


def small_job(**options: Any) -> JobState:
    """Four hosts of one slot at second 100: a and b train in generation 3, c boots, the agent of d is being started.

    Each process is the second life of its slot. All agents have just sent a message.
    """
    job = JobState.new(JobOptions(**options), NOW, helper_number=40, generation=3)
    job.fleet.hosts = HostSet.of(dict.fromkeys("abcd", 1))
    for host in job.fleet.hosts:
        heard = 0.0 if host.name == "d" else NOW
        agent = job.roster.agents[host.name] = Agent(host, 50.0, heard > 0, heard, heard)
        agent.identity = f"agent of {host.name}" if agent.joined else ""
    for host, stage in zip("abc", (Stage.LIVE, Stage.LIVE, Stage.BOOTING), strict=True):
        job.roster.add(_worker(host, stage))
    for worker in job.roster.workers.values():
        job.roster.note_life(worker.life)
    members = ProcessId(Seat("a", 0), 2), ProcessId(Seat("b", 0), 2)
    job.rendezvous.adopt(3, places(members))
    job.world.members, job.world.begun, job.world.own = members, True, True
    return job


def _worker(host: str, stage: Stage) -> Worker:
    worker = Worker(ProcessId(Seat(host, 0), 2), Host(host, 1), stage, 60.0)
    if stage is Stage.LIVE:
        worker.started = worker.loops = True
        worker.generation = worker.agreed = 3
        worker.live_at, worker.in_heartbeat_at = 60.0, NOW
    return worker


def news(host: str, event: str, **fields: Any) -> News:
    """A message of a host's agent."""
    return News(host, {"event": event, **fields})


def of_slot(host: str, event: str, **fields: Any) -> News:
    """A message about the process on a host."""
    return news(host, event, slot=0, life=2, **fields)


def held(host: str) -> News:
    """The host's memory holds commit 5 of generation 3, at step 50."""
    return news(host, "held", slots={"0": [1, 3, 5, 50]})


def hello(agent: str, **more: Any) -> Mapping[str, Any]:
    """The first message of an agent."""
    return {"agent": agent, "facts": {}, "seats": {}, **more}


def runs(generation: int) -> Mapping[str, Any]:
    """An agent's report of a process that trains."""
    return {
        "0": {"life": 2, "pid": 9, "state": "running", "code": None, "generation": generation, "agreed": generation}
    }


def happen(job: JobState, *events: Any) -> None:
    """Apply events. A number lets so many seconds pass; a function prepares the state."""
    for event in events:
        if isinstance(event, float):
            job.now += event
        elif callable(event):
            event(job)
        else:
            reduce(job, event)


def changes(job: JobState, act: Callable[[], object]) -> list[str]:
    """Return the changes that ``act`` makes: new values, ``gone`` for removed ones, and after ``>`` each action."""
    job.take_actions()
    before = dict(_leaves(job))
    act()
    after = dict(_leaves(job))
    changed = [f"{path} {text}" for path, text in after.items() if before.get(path, _NOTHING) != text]
    gone = {_entry(path, after): None for path in before if path not in after and before[path] != _NOTHING}
    return [*changed, *(f"{path} gone" for path in gone), *(f"> {_action(each)}" for each in job.take_actions())]


def lines(text: str) -> list[str]:
    """Split expected changes into lines; ``..`` continues the line before."""
    return [line.strip() for line in re.sub(r"\n\s*\.\. ", " ", text).splitlines() if line.strip()]


_NOTHING: Final = "-"
_SHORT: Final = {"roster.agents": "agents", "roster.workers": "workers", "roster.commits": "commits"}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value of the state that is not a container, with its path."""
    path = _SHORT.get(path, path)
    if isinstance(value, HealthLedger):
        for subject, record in value.records.items():
            until = "by a user" if record.held else f"until {record.until:g}"
            tried = "".join(f", tried for {each.unproven_s:g} s" for each in value.faults if each.unproven_s)
            yield f"blocked[{subject}]", f"{record.strikes} times, {record.cause or record.reason}, {until}{tried}"
    elif isinstance(value, Rendezvous):
        yield from _leaves(value._waiting, "asked")
        yield from _leaves({key: question.path for key, (question, _) in value._held.items()}, "waits_for_key")
        yield from _leaves(value._newest.keys, "keys")
        yield from _leaves({life: world.generation for life, world in value._worlds.items()}, "world_of")
    elif is_dataclass(value) and not isinstance(value, (Host, HostSet, JobOptions)):
        names = [field.name for field in fields(value) if field.compare]
        for name in names if not isinstance(value, Roster) else [*names, "workers"]:
            if name != "_workers":
                yield from _leaves(getattr(value, name), f"{path}.{name}".lstrip("."))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{path}[{_text(key)}]")
    else:
        yield path, _text(value) if value or isinstance(value, enum.Enum) else _NOTHING


def _entry(path: str, after: Mapping[str, str]) -> str:
    """Return the outermost part of a path of which nothing is left."""
    starts = (path[: number + 1] for number, letter in enumerate(path) if letter == "]")
    return next((start for start in starts if not any(each.startswith(start) for each in after)), path)


def _action(action: Any) -> str:
    if isinstance(action, Record):
        # The texts about all blocks of the host are left out: `tests/unit/launcher/health/test_blame.py`
        # checks it.
        told = {name: value for name, value in action.fields.items() if name not in ("host_blocked", "host_blocked_s")}
        return f"Record {action.event} {_text(told)}".rstrip()
    return " ".join([type(action).__name__, *(_text(getattr(action, field.name)) for field in fields(action))])


def _text(value: Any) -> str:
    match value:
        case None | "":
            return _NOTHING
        case float():
            return "never" if value == -math.inf else f"{value:g}"
        case ProcessId():
            return f"{_text(value.seat)}#{value.number}"
        case Seat():
            return f"{value.host}:{value.slot}"
        case enum.Enum():
            return value.name.lower()
        case Host():
            return f"{value.name}:{value.slots}" + "".join(f"/{each}" for each in (value.uid, value.life) if each)
        case HostSet():
            return " ".join(map(_text, value))
        case Mapping():
            return " ".join(f"{_text(key)}={_text(each)}" for key, each in value.items())
        case set() | frozenset():
            return ",".join(sorted(map(_text, value)))
        case tuple() | list():
            return ",".join(map(_text, value))
        case bytes():
            return value.decode()
    return str(value)
