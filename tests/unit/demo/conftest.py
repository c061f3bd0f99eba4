"""A simulated launcher: it answers hosts files and kills with journal records, in virtual time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import BadHosts, Transient
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.core.publication import parse_hosts_text
from hvd_elastic_ext.demo.observed import Worker
from hvd_elastic_ext.demo.runner import Frame, Outcome, ScenarioRunner
from hvd_elastic_ext.demo.scenario import ALL, START, Event
from tests.support.clock import ManualClock

LEAST = 2
"""Hosts that it needs."""


class SelfMovingClock(ManualClock):
    """A wait advances it, so that loops run at once."""

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        assert timeout is not None, "would wait for ever"
        self.advance(timeout)
        return event.is_set()


class Launcher:
    """The job that the scenario controls. Its attributes are faults; the default has none."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.boot_s = 3.0
        self.cooldown_s = 4.0
        self.losing = 2
        self.deaf_to_hosts = False
        self.deaf_to_kills = False
        self.resizes_on_garbage = False
        self.stays_dead = False
        self.resizes_when_relaunched = False
        self.deaf_to_notices = False
        self.never_seals = False
        self.trains_beyond = False
        self.sleepless = False
        self.forgets = 0
        self.absent_agents = 0
        self.absent_kills = 0
        self.ends_after_steps = 2000
        self.code = 0
        self.least = LEAST
        self.chooses: list[int] = []
        self.killed: list[Worker] = []
        self.launchers_killed: list[int] = []
        self.hurried_at: list[int] = []
        self.notified: list[tuple[str, ...]] = []
        self._going: set[str] = set()
        self._stays = False
        self._sleeps_at: float | None = None
        self._asleep = False
        self._hosts: tuple[str, ...] = START
        self._world: tuple[str, ...] = ()
        self._blocked: dict[str, float] = {}
        self._paused_until = clock.mono() + self.boot_s
        self._pending: list[Record] = []
        self._step = 0
        self._pid = 4000
        self._ended: int | None = None
        self._say("started", pid=77)

    # -- the two doors --

    def tail(self) -> list[Record]:
        self._live()
        said, self._pending = self._pending, []
        return said

    def publish(self, text: str) -> None:
        try:
            hosts = parse_hosts_text(text, where="hosts").names
        except BadHosts as error:
            self._say("refused", reason=str(error))
            if self.resizes_on_garbage:
                self._resize("hosts removed", self._world[:1])
            return
        if not self.deaf_to_hosts:
            self._hosts = hosts

    def kill(self, worker: Worker) -> None:
        if self.absent_kills:
            self.absent_kills -= 1
            raise Transient("not there")
        self.killed.append(worker)
        if self.deaf_to_kills:
            return
        self._say("exited", host=worker.host, slot=0, code=137, cause="killed by signal 9")
        self._say("rolled_back", step=self._step - self.losing, steps_lost=self.losing, rank=0, host="x")
        self._say("struck", subject=worker.host, cause="killed by signal 9", until=0.0)
        self._blocked[worker.host] = self.clock.mono() + self.cooldown_s
        self._resize("worker failed", tuple(h for h in self._world if h != worker.host), failed=[worker.host])

    def kill_launcher(self, pid: int) -> None:
        self.launchers_killed.append(pid)
        if not self.stays_dead:
            self._say("started", pid=pid + 1)
        if self.resizes_when_relaunched:
            self._resize("worker failed", self._world[:1])

    def notify(self, hosts: Sequence[str], *, in_s: float) -> None:
        if self.absent_agents:
            self.absent_agents -= 1
            raise Transient("no agent")
        self.notified.append(tuple(hosts))
        if self.deaf_to_notices:
            return
        self._going.update(hosts)
        for host in hosts:
            self._say("notice", host=host, reason="spot", deadline=self.clock.mono() + in_s)
        if len(set(self._world) - self._going) < self.least and not self.never_seals:
            self._say("sealed", step=self._step, path="p")
            self._stays = not self.trains_beyond

    def take_away(self, hosts: Sequence[str]) -> None:
        self._going.difference_update(hosts)
        if not set(self._world).isdisjoint(hosts):
            self._world, self._stays = (), False
            self._sleeps_at = math.inf if self.sleepless else self.clock.mono() + 2.0

    def run_fast(self) -> None:
        self.hurried_at.append(self._step)

    def ended(self) -> int | None:
        return self._ended

    # -- its life --

    def _live(self) -> None:
        now = self.clock.mono()
        if self._ended is not None or now < self._paused_until:
            return
        over = [host for host, until in self._blocked.items() if until <= now]
        for host in over:
            del self._blocked[host]
        wanted = tuple(host for host in self._hosts if host not in {*self._blocked, *self._going})
        if self._sleeps_at is not None:
            self._sleep(now, self._sleeps_at, enough=len(wanted) >= self.least)
            return
        if set(wanted) != set(self._world) and len(wanted) >= self.least:
            self._reconcile(wanted, over)
            return
        if self._stays:
            return
        self._step += 1
        if self.chooses and self._step % 20 == 0:
            self._hosts = ALL[: self.chooses.pop(0)]
        told = {"epoch": self._step // 20, "loss": 1.0 / self._step}
        self._say("stepped", step=self._step, rank=0, size=len(self._world), host=self._world[0], values=told)
        if self._step >= self.ends_after_steps:
            self._say("finished", code=self.code, reason="training is done")
            self._ended = self.code

    def _sleep(self, now: float, at: float, *, enough: bool) -> None:
        if not self._asleep and now >= at:
            self._asleep = True
            self._say("slept", reason="too few", step=self._step, path="p")
        elif self._asleep and enough:
            self._asleep, self._sleeps_at = False, None
            self._step -= self.forgets
            self._say("woke", reason="enough", slept_s=1.0)
            self._say("resumed", reason="p", step=self._step, path="p")

    def _reconcile(self, wanted: tuple[str, ...], over: Sequence[str]) -> None:
        added = [host for host in wanted if host not in self._world]
        cause = "start" if not self._world else "cooldown over" if over else "hosts added" if added else "hosts removed"
        self._resize(cause, tuple(h for h in self._world if h in wanted) + tuple(added))
        self._paused_until = self.clock.mono() + (self.boot_s if added else 0.2)

    def _resize(self, cause: str, world: tuple[str, ...], failed: Sequence[str] = ()) -> None:
        newcomers = [host for host in world if host not in self._world]
        self._world = world
        self._say("resized", cause=cause, size=len(world), hosts=dict.fromkeys(world, 1), failed=list(failed))
        for host in newcomers:
            self._pid += 1
            self._say("spawned", host=host, slot=0, rank=world.index(host), pid=self._pid)

    def _say(self, event: str, **fields: Any) -> None:
        self._pending.append(Record(self.clock.wall(), self.clock.mono(), 1, event, fields))


@pytest.fixture
def clock() -> SelfMovingClock:
    return SelfMovingClock()


@pytest.fixture
def launcher(clock: SelfMovingClock) -> Launcher:
    return Launcher(clock)


@pytest.fixture
def frames() -> list[Frame]:
    return []


@pytest.fixture
def run_demo(launcher: Launcher, clock: SelfMovingClock, frames: list[Frame]) -> Callable[[Sequence[Event]], Outcome]:
    def run(scenario: Sequence[Event]) -> Outcome:
        return ScenarioRunner(scenario, launcher.tail, control=launcher, clock=clock, watch=frames.append).run(
            lambda: False
        )

    return run
