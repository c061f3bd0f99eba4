"""Drive a job through a script: look, decide, act. Shows nothing and starts nothing.

The job is met at two doors only, its journal and :class:`Hands`, so the same
script can be played to any launcher.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Transient
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import Record, parse_line
from hvd_elastic_ext.core.publication import render_hosts_text
from hvd_elastic_ext.demo.progress import Seen, Worker, look
from hvd_elastic_ext.demo.script import (
    Action,
    Decision,
    Kill,
    KillLauncher,
    Notify,
    Scene,
    SetHosts,
    Stage,
    TakeAway,
    WriteText,
    acted,
    complaint,
    decide,
    next_stage,
    victim,
)

LOOK_EVERY_S: Final = 0.05
TO_THE_END_S: Final = 300.0
"""How long the job may take to end by itself once every scene is over."""


class Hands(Protocol):
    """What the script may do to the job."""

    def publish(self, text: str) -> None:
        """Replace the hosts file, atomically."""

    def kill(self, worker: Worker) -> None:
        """``kill -9``. Raises :class:`Transient` if there is no such worker just now."""

    def kill_launcher(self, pid: int) -> None:
        """``kill -9`` the launcher, which is started again. Raises :class:`Transient` if it is not there just now."""

    def notify(self, hosts: Sequence[str], *, in_s: float) -> None:
        """Tell hosts that they are taken back. Raises :class:`Transient` if there is nobody to be told just now."""

    def take_away(self, hosts: Sequence[str]) -> None:
        """``kill -9`` whatever runs on these hosts, at one moment."""

    def hurry(self) -> None:
        """Everything has been seen: let training go on to its end as fast as it can."""

    def ended(self) -> int | None:
        """The exit code of the job, once it has ended."""


@dataclass(frozen=True, slots=True)
class Frame:
    """All that can be shown of one moment. ``waiting`` says what for, ``done`` what each scene past has shown."""

    at: float
    seen: Seen
    script: tuple[Scene, ...]
    stage: Stage
    done: tuple[str, ...] = ()
    did: str = ""
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went: a line for each failed expectation, and the job's exit code (None if it was still running)."""

    frame: Frame
    failures: tuple[str, ...]
    code: int | None


class Tail:
    """Reads a journal while others append to it; a line is read once it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._partial = b""

    def read(self) -> list[Record]:
        """Records written since the last call; none while there is no file."""
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


class Drive:
    """One run of a script. ``watch`` is called with every frame."""

    def __init__(
        self,
        script: Sequence[Scene],
        tail: Callable[[], Sequence[Record]],
        *,
        hands: Hands,
        clock: Clock,
        watch: Callable[[Frame], None],
    ) -> None:
        self._tail = tail
        self._hands = hands
        self._clock = clock
        self._watch = watch
        self._began = clock.mono()
        self._failures: list[str] = []
        self._frame = Frame(0.0, Seen(), tuple(script), Stage(since=self._began))

    def run(self, stopped: Callable[[], bool]) -> Outcome:
        """Play the script and wait for the job's own end; return early once ``stopped`` or a scene has failed."""
        pause = threading.Event()
        while True:
            code = self._hands.ended()  # asked first, so that nothing written before the end is missed
            if not self._turn() or code is not None:
                return self._outcome(code)
            if stopped():
                return self._outcome(None)
            self._clock.wait(pause, LOOK_EVERY_S)

    def _outcome(self, code: int | None) -> Outcome:
        frame = self._frame
        unfinished = frame.stage.index < len(frame.script)
        if code is not None and unfinished and not self._failures:
            scene = frame.script[frame.stage.index]
            self._failures.append(f"{scene.name}: the job ended (exit code {code}) while waiting for {frame.waiting}")
        return Outcome(frame, tuple(self._failures), code)

    def _turn(self) -> bool:
        """Look and act once; False when there is nothing left to wait for."""
        now = self._clock.mono()
        seen = look(self._frame.seen, self._tail())
        decision, reason = decide(now, seen, self._frame.stage, self._frame.script)
        self._frame = replace(self._frame, at=now - self._began, seen=seen, waiting=reason)
        if decision is Decision.ACT:
            self._act(now)
        elif decision is Decision.NEXT:
            self._go_on(now, reason)
        elif decision is Decision.FAIL:
            self._failures.append(reason)
        elif decision is Decision.OVER and now - self._frame.stage.since > TO_THE_END_S:
            self._failures.append(f"the job did not end by itself within {TO_THE_END_S:.0f} s of the last event")
            return False
        self._watch(self._frame)
        return decision is not Decision.FAIL

    def _act(self, now: float) -> None:
        frame = self._frame
        scene = frame.script[frame.stage.index]
        stage = acted(now, frame.seen, frame.stage, scene)
        try:
            did = self._perform(scene.act)
        except Transient as error:
            self._frame = replace(frame, waiting=str(error))
            return  # look again; the deadline of the scene goes on
        self._frame = replace(frame, stage=stage, did=did)

    def _perform(self, act: Action) -> str:
        if isinstance(act, SetHosts):
            return self._publish(act.hosts)
        if isinstance(act, WriteText):
            self._hands.publish(act.text)
            return f"hosts file: {act.text.splitlines()[0]!r} …"
        if isinstance(act, Kill):
            worker = victim(self._frame.seen, act)
            if worker is None:
                raise Transient("no worker to kill is known yet")
            self._hands.kill(worker)
            return f"kill -9 {worker.pid}, {'rank 0' if act.rank_0 else 'a worker'} on {worker.host}"
        if isinstance(act, KillLauncher):
            pid = self._frame.seen.launcher
            if pid is None:
                raise Transient("the launcher has not said who it is")
            self._hands.kill_launcher(pid)
            return f"kill -9 {pid}, the launcher itself"
        if isinstance(act, Notify):
            self._hands.notify(act.hosts, in_s=act.in_s)
            return f"spot notice, {act.in_s:.0f} s: {' '.join(act.hosts)}"
        if isinstance(act, TakeAway):
            # First the list: what is killed on a host that is listed is started there again.
            did = self._publish(act.left)
            self._hands.take_away(act.hosts)
            return f"gone: {' '.join(act.hosts)}; {did}"
        return ""

    def _publish(self, hosts: Sequence[str]) -> str:
        self._hands.publish(render_hosts_text(HostSet.of(dict.fromkeys(hosts, 1))))
        return f"hosts file: {' '.join(hosts)}"

    def _go_on(self, now: float, shown: str) -> None:
        frame = self._frame
        scene = frame.script[frame.stage.index]
        wrong = complaint(frame.seen, frame.stage, scene)
        if wrong is not None:
            self._failures.append(wrong)
        stage = next_stage(now, frame.seen, frame.stage, scene)
        self._frame = replace(frame, stage=stage, done=(*frame.done, wrong or shown))
        if stage.index == len(frame.script):
            self._hands.hurry()
