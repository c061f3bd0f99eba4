"""Run a scenario on a job: observe, decide, act. Shows nothing and starts nothing.

It uses only the journal, and what :class:`~hvd_elastic_ext.demo.job.Job` can do to a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Transient
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import Record, parse_line
from hvd_elastic_ext.core.publication import render_hosts_text
from hvd_elastic_ext.demo.job import Job
from hvd_elastic_ext.demo.observed import Observed, observe
from hvd_elastic_ext.demo.scenario import (
    Action,
    Event,
    Kill,
    KillLauncher,
    Notify,
    Position,
    ScenarioStep,
    SetHosts,
    TakeAway,
    WriteText,
    acted,
    decide,
    next_position,
    too_many_lost,
    worker_to_kill,
)

LOOK_EVERY_S: Final = 0.05
TO_THE_END_S: Final = 300.0
"""Seconds for the job to end by itself after the last event."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a view shows of one moment."""

    at: float
    """Seconds since the start."""
    seen: Observed
    scenario: tuple[Event, ...]
    position: Position
    done: tuple[str, ...] = ()
    """The effects of past events."""
    did: str = ""
    """What was done last."""
    waiting: str = ""
    """The awaited effect."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result: a line per failed expectation, and the exit code (None if the job still ran)."""

    frame: Frame
    failures: tuple[str, ...]
    code: int | None


class JournalTail:
    """Reads a journal while others append to it, by complete lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._partial = b""

    def read(self) -> list[Record]:
        """Return the records since the last call; none without a file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(new)
        *lines, self._partial = (self._partial + new).split(b"\n")
        parsed = (parse_line(line.decode("utf-8", errors="replace")) for line in lines)
        return [record for record in parsed if record is not None]


class ScenarioRunner:
    """One run of a scenario. ``watch`` is called with every frame."""

    def __init__(
        self,
        scenario: Sequence[Event],
        tail: Callable[[], Sequence[Record]],
        *,
        control: Job,
        clock: Clock,
        watch: Callable[[Frame], None],
    ) -> None:
        self._tail = tail
        self._control = control
        self._clock = clock
        self._watch = watch
        self._began = clock.mono()
        self._failures: list[str] = []
        self._frame = Frame(0.0, Observed(), tuple(scenario), Position(since=self._began))

    def run(self, stopped: Callable[[], bool]) -> Outcome:
        """Run the scenario and wait for the end of the job; return early if stopped or after a failure."""
        pause = threading.Event()
        while True:
            code = self._control.ended()  # first, so that no record before the end is missed
            if not self._turn() or code is not None:
                return self._outcome(code)
            if stopped():
                return self._outcome(None)
            self._clock.wait(pause, LOOK_EVERY_S)

    def _outcome(self, code: int | None) -> Outcome:
        frame = self._frame
        unfinished = frame.position.index < len(frame.scenario)
        if code is not None and unfinished and not self._failures:
            event = frame.scenario[frame.position.index]
            self._failures.append(f"{event.name}: the job ended (exit code {code}) while waiting for {frame.waiting}")
        return Outcome(frame, tuple(self._failures), code)

    def _turn(self) -> bool:
        """Observe and act once; False when there is nothing left to wait for."""
        now = self._clock.mono()
        seen = observe(self._frame.seen, self._tail())
        decision, reason = decide(now, seen, self._frame.position, self._frame.scenario)
        self._frame = replace(self._frame, at=now - self._began, seen=seen, waiting=reason)
        if decision is ScenarioStep.ACT:
            self._act(now)
        elif decision is ScenarioStep.NEXT:
            self._go_on(now, reason)
        elif decision is ScenarioStep.FAIL:
            self._failures.append(reason)
        elif decision is ScenarioStep.OVER and now - self._frame.position.since > TO_THE_END_S:
            self._failures.append(f"the job did not end by itself within {TO_THE_END_S:.0f} s of the last event")
            return False
        self._watch(self._frame)
        return decision is not ScenarioStep.FAIL

    def _act(self, now: float) -> None:
        frame = self._frame
        event = frame.scenario[frame.position.index]
        position = acted(now, frame.seen, frame.position, event)
        try:
            did = self._perform(event.action)
        except Transient as error:
            self._frame = replace(frame, waiting=str(error))
            return  # try again; the deadline of the event stays
        self._frame = replace(frame, position=position, did=did)

    def _perform(self, action: Action) -> str:
        if isinstance(action, SetHosts):
            return self._publish(action.hosts)
        if isinstance(action, WriteText):
            self._control.publish(action.text)
            return f"hosts file: {action.text.splitlines()[0]!r} …"
        if isinstance(action, Kill):
            worker = worker_to_kill(self._frame.seen, action)
            if worker is None:
                raise Transient("no worker to kill is known yet")
            self._control.kill(worker)
            return f"kill -9 {worker.pid}, {'rank 0' if action.rank_0 else 'a worker'} on {worker.host}"
        if isinstance(action, KillLauncher):
            pid = self._frame.seen.launcher
            if pid is None:
                raise Transient("the launcher's process is not known yet")
            self._control.kill_launcher(pid)
            return f"kill -9 {pid}, the launcher itself"
        if isinstance(action, Notify):
            self._control.notify(action.hosts, in_s=action.in_s)
            return f"spot notice, {action.in_s:.0f} s: {' '.join(action.hosts)}"
        if isinstance(action, TakeAway):
            # First the list: a process killed on a listed host is restarted there.
            did = self._publish(action.left)
            self._control.take_away(action.hosts)
            return f"gone: {' '.join(action.hosts)}; {did}"
        return ""

    def _publish(self, hosts: Sequence[str]) -> str:
        self._control.publish(render_hosts_text(HostSet.of(dict.fromkeys(hosts, 1))))
        return f"hosts file: {' '.join(hosts)}"

    def _go_on(self, now: float, shown: str) -> None:
        frame = self._frame
        event = frame.scenario[frame.position.index]
        wrong = too_many_lost(frame.seen, frame.position, event)
        if wrong is not None:
            self._failures.append(wrong)
        position = next_position(now, frame.seen, frame.position, event)
        self._frame = replace(frame, position=position, done=(*frame.done, wrong or shown))
        if position.index == len(frame.scenario):
            self._control.run_fast()
