"""Plays a history to its end, and reports in readable form what went wrong."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from hvd_elastic_ext.core.engines import ENGINES
from hvd_elastic_ext.launcher.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.driver.recording import Recorder
from hvd_elastic_ext.launcher.health.strikes import STARTS
from hvd_elastic_ext.launcher.membership.spares import SpareLimits
from tests.unit.launcher.model.history import Event, History
from tests.unit.launcher.model.oracle import TOLD_S, Broken
from tests.unit.launcher.model.short import SHORT, VICTIM, Cluster

WELL_S: Final = 10.0
"""Seconds from the last event until everything is repaired, unless the script names a time."""
RECOVERY_S: Final = 110.0
"""Once everything is repaired, all hosts train within these seconds.

These waits may follow one another: a process that never gets ready is given up (15 s), its cooldown (8 s), the lease of
an agent without a launcher (8 s), a launcher's wait for the agents of the launcher before it (8 s), one for commits (6
or 20 s), a process that leaves no world by itself (30 s), and starts of processes in between.
"""
ENDS_S: Final = 75.0
"""Once training is done, the job ends within these seconds: 30 s for processes, 31 s for hosts without a connection."""
ALONE_S: Final = 200.0
"""If nothing is repaired, the job trains or has ended after these seconds: ``--elastic-timeout`` is 120 s."""


UNDISTURBED: Final = frozenset(
    {"hosts", "leave", "calls", "prologue", "well", "store", "disk", "wait", "most", "spares", "devices"}
)
"""If nothing else happens, and the first list is the only one, training is done when all ranks have left together."""
CERTAIN: Final = frozenset({"brittle", "prologue", "hosts", "bad", "crash", "kill", "block", "clear", "well", "store"})
"""Events after which it is certain which end of a process follows from which."""


IN_PLACE: Final = tuple(name for name, spec in ENGINES.items() if spec.in_place)
"""The engines of the jobs that are played, in turns: all decisions are the same for them."""


@dataclass(frozen=True)
class Failure:
    """A history in which a rule was violated, and the journal."""

    history: History
    promise: str
    why: str
    journal: str

    def __str__(self) -> str:
        return f'{self.why}\n\nscript("""\n{self.history}\n""")\n\n{self.journal}'


def play(history: History, *, recorder: Recorder | None = None) -> Failure | None:
    """Play a history, repair the cluster, and let the job end. Return what was wrong; None if nothing was."""
    dies = any(event.verb == "launcher" for event in history.events)
    cluster = Cluster(launcher_dies=dies, engine=IN_PLACE[len(history.events) % len(IN_PLACE)])
    cluster.recorder = recorder
    try:
        with quiet():
            Play(cluster, history).whole()
    except Broken as broken:
        return Failure(history, broken.promise, f"{cluster.sim.now - 100.0:.2f}: {broken}", _told(cluster))
    except Exception as error:  # a defect of the driver, or of the simulation
        return Failure(history, "no defect", f"{cluster.sim.now - 100.0:.2f}: {_where(error)}", _told(cluster))
    return None


SHRINK_S: Final = 120.0
"""Longest time for making a history simpler: some take long to play."""


def shrunk(failure: Failure, *, again: Callable[[History], Failure | None] = play) -> Failure:
    """Return the simplest history with the same failure: leaves out events, then simplifies the others, as long as it
    fails, and for :data:`SHRINK_S` at most."""
    until = time.monotonic() + SHRINK_S
    while True:
        histories = itertools.takewhile(lambda _: time.monotonic() < until, _plainer(failure.history))
        tries = map(again, histories)
        plainer = next((each for each in tries if each is not None and each.promise == failure.promise), None)
        if plainer is None:
            return failure
        failure = plainer


def _plainer(history: History) -> Iterator[History]:
    events = history.events
    first = next(index for index, event in enumerate(events) if event.verb == "hosts")
    for index in range(len(events) - 1, -1, -1):
        if index != first:
            yield History(events[:index] + events[index + 1 :])
    for index, event in enumerate(events):
        for each in _simpler(event):
            yield History((*events[:index], each, *events[index + 1 :]))
        if index > first + 1 and (gap := event.at - events[index - 1].at) > 0:
            rest = [later._replace(at=round(later.at - gap, 2)) for later in events[index:]]
            yield History((*events[:index], *rest))


def _simpler(event: Event) -> Iterator[Event]:
    if event.word:
        yield event._replace(word="")
    if event.slot:
        yield event._replace(slot=0)
    if event.going:
        yield event._replace(going=())
    if any(slots > 1 for _, slots in event.hosts):
        yield event._replace(hosts=tuple((host, 1) for host, _ in event.hosts))
    if event.at == 0 and len(event.hosts) > 2:
        for index in range(len(event.hosts)):
            yield event._replace(hosts=event.hosts[:index] + event.hosts[index + 1 :])


class Play:
    """One history in a cluster."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster, self._history = cluster, history
        self._start = cluster.sim.now
        events = history.events
        cluster.oracle.slots = history.every_host
        cluster.oracle.undisturbed = {each.verb for each in events} <= UNDISTURBED and not any(
            each.verb == "hosts" and each.at > 0 for each in events
        )
        self._failed_between = False
        """Whether a process has failed between its first training call and the next one: nobody can know that another
        call was to follow."""

    def whole(self) -> None:
        """Play the whole history."""
        cluster = self._cluster
        for event in self._history.events:
            cluster.run(self._start + event.at)
            if self._over():
                return self._ended_early()
            if event.verb not in ("alone", "well"):
                getattr(self, f"_{event.verb}")(event)
            if event.verb == "hosts" and event.at == 0:
                cluster.start_launcher()
        last = self._history.events[-1].verb
        if last == "alone":
            return self._stays_alone()
        if last != "well":
            cluster.run(cluster.sim.now + WELL_S)
        self._heal()
        self._until(self._all_train, within=RECOVERY_S, what="not all hosts train")
        if self._over():
            return self._ended_early()
        cluster.run(cluster.sim.now + 2.0)
        cluster.oracle.ending = cluster.training.finishing = True
        self._until(self._over, within=ENDS_S, what="the job does not end")
        self._ended_well()
        return None

    def _over(self) -> bool:
        launcher = self._cluster.launcher
        return launcher is not None and launcher.driver.over

    def _all_train(self) -> bool:
        if self._over():
            return True
        seats, most = sum(self._history.every_host.values()), self._cluster.options.limits.most
        seats = seats if most is None else min(seats, most)
        worlds = [world for world in self._cluster.training.worlds if world.phase == "training"]
        return len(worlds) == 1 and len(worlds[0].members) == seats and not worlds[0].interrupted

    def _until(self, condition: Callable[[], bool], *, within: float, what: str) -> None:
        deadline = self._cluster.sim.now + within
        while not condition():
            if self._cluster.sim.now >= deadline:
                raise Broken("recovery", f"{what}, {within:g} s after all is well again: {self._says()}")
            self._cluster.run(self._cluster.sim.now + 0.5)

    def _says(self) -> str:
        launcher = self._cluster.launcher
        return "no launcher" if launcher is None else repr(launcher.driver.job.decision.reason)

    def _ended_early(self) -> None:
        assert self._cluster.launcher is not None
        outcome = self._cluster.launcher.driver.outcome
        verbs = [event.verb for event in self._history.events]
        if "starts without a step between" in str(outcome) and ("bad" in verbs or verbs.count("crash") >= STARTS):
            self._check_blame()
            return
        if outcome is None and self._all_left():
            return
        if self._failed_between and "after training was done" in str(outcome):
            return
        none_trained = "no process started training" in str(outcome)
        if self._cluster.oracle.begun or not none_trained:
            raise Broken("outcome", f"the job ended before training was done: {outcome}")

    def _ended_well(self) -> None:
        assert self._cluster.launcher is not None
        if (outcome := self._cluster.launcher.driver.outcome) is not None:
            raise Broken("outcome", f"training is done, and the job ends with: {outcome}")
        self._cluster.oracle.check_losses()
        self._check_blame()

    def _all_left(self) -> bool:
        """Whether all members of the last world have left with exit code 0: their training is done."""
        size = left = 0
        lines = map(json.loads, self._cluster.journal.getvalue().splitlines())
        for line in sorted(lines, key=lambda line: line["mono"]):  # a world is reported after its first step
            if line["event"] == "resized":
                size, left = line["size"], 0
            left += line["event"] == "exited" and line["code"] == 0 and line["cause"] == "left"
        return 0 < size <= left

    def _check_blame(self) -> None:
        """Check that no process is blamed for the failure of another one. That is certain only if all networks, agents
        and launchers have worked.
        """
        if not {event.verb for event in self._history.events} <= CERTAIN:
            return
        for line in map(json.loads, self._cluster.journal.getvalue().splitlines()):
            victim = line["event"] == "exited" and line["code"] == VICTIM and line["cause"] == "crashed"
            if victim or (line["event"] == "struck" and f"exit code {VICTIM}" in line["reason"]):
                raise Broken("no victim is blamed", json.dumps(line))

    def _stays_alone(self) -> None:
        """Check a job without any repair: it trains, or it ends with a reason."""
        cluster = self._cluster
        deadline = cluster.sim.now + ALONE_S
        while cluster.sim.now < deadline and not self._over():
            cluster.run(cluster.sim.now + TOLD_S)
        if self._over():
            assert cluster.launcher is not None
            if not (str(cluster.launcher.driver.outcome or "") or self._all_left()):
                raise Broken("outcome", "the job has ended well, and training was not done")
        elif cluster.sim.now - cluster.oracle.trained_at > TOLD_S:
            raise Broken("waits end", f"nobody trains, and nothing ends that: {self._says()}")
        cluster.oracle.check_losses()

    def _heal(self) -> None:
        """Repair everything: networks, lists, health, and processes that do not get ready."""
        cluster = self._cluster
        cluster.late_s.clear()
        cluster.boot_s.clear()
        cluster.training.bad.clear()
        cluster.training.sync_s, cluster.helpers.transfer_s = 0.2, 0.4
        for host in list(cluster.cut):
            cluster.link_back(host)
        for agent in list(cluster.agents.values()):
            agent.recall()
            for process in agent.processes.values():
                if process.stopped:
                    cluster.cont(process)
        cluster.start_launcher()
        for host in self._history.every_host:
            cluster.clear(host)
        cluster.publish(self._history.every_host)

    # --- events

    def _hosts(self, event: Event) -> None:
        self._cluster.publish(dict(event.hosts), dict(event.going))

    def _empty(self, event: Event) -> None:
        self._cluster.publish({})

    def _garbage(self, event: Event) -> None:
        """The list is refused, so nothing happens."""

    def _kill(self, event: Event, code: int = 137) -> None:
        process = self._cluster.process(event.host, event.slot)
        if process is not None:
            self._failed_between |= process.state == "between" and process.call == 1 and code == 1
            if event.word:
                self._cluster.training.ahead(process, others=event.word == "behind")
            process.agent.ended(process, code)

    def _crash(self, event: Event) -> None:
        self._kill(event, 1)

    def _leave(self, event: Event) -> None:
        process = self._cluster.process(event.host, event.slot)
        worlds = [world for world in self._cluster.training.worlds if world.phase == "training"]
        if not event.host and worlds:
            self._cluster.oracle.all_leave(worlds[0], apart_s=event.value or 0.0)
            self._cluster.training.leave_together(worlds[0], apart_s=event.value or 0.0)
        elif process is not None and process.state == "training" and process.world is not None:
            if len(process.world.members) == 1:
                self._cluster.oracle.all_leave(process.world)
            self._kill(event, 0)

    def _stop(self, event: Event) -> None:
        if (process := self._cluster.process(event.host, event.slot)) is not None:
            self._cluster.stop(process)

    def _cont(self, event: Event) -> None:
        process = self._cluster.process(event.host, event.slot)
        if process is not None and process.stopped:
            self._cluster.cont(process)

    def _slow(self, event: Event) -> None:
        self._cluster.boot_s[event.host] = event.value or SHORT.boot_s

    def _never(self, event: Event) -> None:
        self._cluster.boot_s[event.host] = None

    def _agent(self, event: Event) -> None:
        if (agent := self._cluster.agents.get(event.host)) is not None:
            self._cluster.agent_dies(agent)

    def _cut(self, event: Event) -> None:
        self._cluster.cut_off(event.host)

    def _back(self, event: Event) -> None:
        self._cluster.link_back(event.host)

    def _drop(self, event: Event) -> None:
        self._cluster.drop(event.host)

    def _late(self, event: Event) -> None:
        self._cluster.late_s[event.host] = event.value or 0.0

    def _notice(self, event: Event) -> None:
        if (agent := self._cluster.agents.get(event.host)) is not None:
            agent.announce(event.value)

    def _stay(self, event: Event) -> None:
        if (agent := self._cluster.agents.get(event.host)) is not None:
            agent.recall()

    def _sigterm(self, event: Event) -> None:
        if (agent := self._cluster.agents.get(event.host)) is not None:
            agent.terminate()

    def _block(self, event: Event) -> None:
        self._cluster.block(event.host, event.value)

    def _clear(self, event: Event) -> None:
        self._cluster.clear(event.host)

    def _launcher(self, event: Event) -> None:
        if self._cluster.launcher is not None:
            self._cluster.kill_launcher()
            self._cluster.sim.later(event.value or 0.0, self._cluster.start_launcher)

    def _bad(self, event: Event) -> None:
        self._cluster.training.bad.add((event.host, event.slot))

    def _calls(self, event: Event) -> None:
        self._cluster.training.program.steps = tuple(map(int, event.word.split()))

    def _prologue(self, event: Event) -> None:
        self._cluster.training.program.prologue_s = event.value or 0.0
        self._cluster.training.program.quiet = event.word == "quiet"

    def _brittle(self, event: Event) -> None:
        self._cluster.training.brittle = True

    def _sync(self, event: Event) -> None:
        self._cluster.training.sync_s = event.value or 0.2

    def _transfer(self, event: Event) -> None:
        self._cluster.helpers.transfer_s = event.value or 0.4

    def _store(self, event: Event) -> None:
        self._cluster.options.durability = Durability("/store", Cadence(seconds=event.value))

    def _disk(self, event: Event) -> None:
        self._cluster.helpers.shared = False

    def _most(self, event: Event) -> None:
        self._cluster.options.limits = replace(self._cluster.options.limits, most=int(event.value or 1))

    def _spares(self, event: Event) -> None:
        self._cluster.options.spares = SpareLimits(number=int(event.value or 0))

    def _devices(self, event: Event) -> None:
        self._cluster.options.names_devices = True

    def _wait(self, event: Event) -> None:
        self._cluster.options.commit_wait_s = event.value or 0.0

    def _standstill(self, event: Event) -> None:
        if self._cluster.launcher is not None:
            self._cluster.launcher.stop(event.value or 0.0)

    def _save(self, event: Event) -> None:
        self._cluster.save_s = event.value or 0.02


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off the driver's log: it is not needed, and takes longer than the rest."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _where(error: Exception) -> str:
    trace, last = error.__traceback__, ""
    while trace is not None:
        last = f"{trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} at {last}: {error}"


_LEFT_OUT: Final = frozenset({"t", "mono", "event", "pid", "generation"})


def _told(cluster: Cluster) -> str:
    """Return the journal in readable form: seconds from the beginning, generation, event, fields."""
    lines = [json.loads(line) for line in cluster.journal.getvalue().splitlines()]
    return "\n".join(
        f"{line['mono'] - 100.0:8.2f}  {line['generation']:2d}  {line['event']:11s} {_fields(line)}" for line in lines
    )


def _fields(line: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in line.items() if name not in _LEFT_OUT)
