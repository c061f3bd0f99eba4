"""The processes of a cluster in memory, and what their agents report of them.

:mod:`tests.unit.launcher.simulated_cluster` decides which messages they get, and when. Here each process, agent and
message can fail by itself. The simulator (``hvd_elastic_ext/simulate/cluster``), which plays the histories of
:mod:`tests.unit.launcher.model`, moves all processes of a world together instead: it is fast, and knows the real state.
"""

from __future__ import annotations

import base64
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hvd_elastic_ext.core.messages.slot_protocol import START_AGAIN
from hvd_elastic_ext.launcher.driver.driver import Driver
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.simulate.cluster.virtual_time import Sim

STEP_S = 0.02


@dataclass
class Process:
    """``state``: booting, parked, waiting (for a rank), training, gone. ``stopped``: as by SIGSTOP.

    ``stuck``: its main thread stands still, and the others wait for it. ``beats``: its script calls heartbeat()
    meanwhile. ``wedged``: it waits for a peer even if the peer is lost, as Gloo does in the middle of a send.
    """

    host: str
    slot: int
    life: int
    state: str = "booting"
    rank: int | None = None
    generation: int = 0
    agreed: int = 0
    asked: int | None = None
    interrupted: bool = False
    leave: bool = False
    lost: bool = False
    stopped: bool = False
    beat_at: float = 0.0
    steps: int = 0
    stuck: bool = False
    beats: bool = False
    wedged: bool = False
    progress: int = 0
    step_s: float | None = None
    stepped_at: float | None = None
    done: bool = False
    warned: bool = False
    code: int | None = None
    call: int = 1


class Processes:
    """All living processes, by host and slot.

    ``cut``, ``mute``, ``dumb``, ``undying``, ``sealed``, ``lose_news``: see the cluster.
    """

    driver: Driver
    calls = False
    """Whether they name their training calls."""
    commits = True
    """Whether they have a State of ours."""
    loops = True
    """Whether their script has an elastic loop."""
    leaves_with = START_AGAIN
    """Their exit code if another process takes their place in the next world."""
    pace: Callable[[int], float] | None = None
    """Seconds of a step by size of the world, for steps that do not end with a heartbeat; None: one step each
    heartbeat."""
    call_s: float | None = 1.0
    """Seconds from one call of ``commit()`` to the next, as they report them."""

    def __init__(self) -> None:
        self.sim = Sim()
        self.clock, self.later = self.sim.time, self.sim.later
        self.step_s = STEP_S
        self.steps_a_beat = 1
        self.cut: set[str] = set()
        self.lose_news: Counter[str] = Counter()
        self.dumb: set[str] = set()
        self.agents: dict[str, dict[int, Process]] = {}
        self.mute: set[str] = set()
        self.undying: set[str] = set()
        self.sealed: list[int] | None = None
        self._beating: set[str] = set()
        """Hosts whose agent has connected at least once."""
        self._said_lately: dict[str, list[tuple[float, dict[str, Any]]]] = {}
        self._kept: dict[str, list[dict[str, Any]]] = {}
        self._ended: dict[tuple[str, int], Process] = {}
        self._asks = itertools.count()
        self.memory: dict[tuple[str, int], list[int]] = {}
        """By slot, the newest commit in its memory: incarnation, generation, number and step."""
        self.pasts: dict[tuple[str, int], int] = {}
        """By slot, the number of results of training calls in its memory."""
        self._steps: Counter[int] = Counter()
        """By generation, the number of steps of its processes, which is the same for all."""

    @property
    def training(self) -> list[Process]:
        """The processes in the world, by rank."""
        found = [p for p in self._all() if p.state == "training" and not p.lost]
        return sorted(found, key=lambda p: p.rank if p.rank is not None else -1)

    @property
    def world(self) -> list[str]:
        """The host of each rank."""
        return [process.host for process in self.training]

    # --- processes

    def _park(self, process: Process) -> None:
        if process.state == "booting":
            process.state = "parked"
            self._goes_on(process)

    def _goes_on(self, process: Process) -> None:
        """A process passes over the calls whose results are in its slot, and parks in the next one."""
        process.call = max(process.call, self.pasts.get((process.host, process.slot), 0))
        self.say(process, "parked", **({"call": process.call} if process.call > 1 or self.calls else {}))

    def next_call(self, *, kept: bool = True, reason: str = "too large") -> None:
        """All processes of the world end their call, and begin the next one."""
        self.calls = True
        for process in self.training:
            if kept:
                self.pasts[process.host, process.slot] = process.call + 1
            why = {} if kept else {"reason": reason}
            process.call += 1
            self.say(process, "done", call=process.call - 1)
            self.say(process, "looping", call=process.call)
            self.say(process, "result", call=process.call - 1, bytes=9, kept=kept, **why)

    def _told(self, process: Process, message: Mapping[str, Any]) -> None:
        if message["tell"] == "go" and process.state == "parked":
            self._ask(process)
        elif message["tell"] == "update" and process.state == "training":
            process.leave = process.leave or message["leave"]
            self._interrupt_all(process.generation)
        elif message["tell"] == "results" and process.state == "parked":
            self.later(0.5, self._goes_on, process)
        elif message["tell"] == "fence" and process.state == "training":
            self._lose(process)

    def _interrupt_all(self, generation: int) -> None:
        """One interrupted rank takes all ranks out of the world, at their next step."""
        for each in self._all():
            if each.generation == generation and each.state == "training" and not each.interrupted:
                each.interrupted = True
                self.later(self.step_s, self._leave_world, each)

    def _leave_world(self, process: Process) -> None:
        stays = process.stopped or process.wedged or process.lost or not process.interrupted
        if process.state != "training" or stays:
            return
        peers = [peer for peer in self._all() if peer.generation == process.generation]
        if process.host not in self.cut and any(peer.host in self.cut for peer in peers):
            return  # there is no next step: it waits for a rank that is cut off, and cannot learn that
        if process.leave:
            self._end(process, 0)
        else:
            self._ask(process)

    def _lose(self, process: Process, generation: int | None = None) -> None:
        """A process loses its world, and asks for the next one."""
        stays = process.lost or process.wedged or process.state != "training"
        if not stays and generation in (None, process.generation):
            process.lost = True
            self.later(0.005, self._ask, process)

    def _ask(self, process: Process) -> None:
        """A process asks for its rank. With an engine that starts other processes for each world, a former member ends
        instead."""
        if process.state == "gone" or process.stopped:
            return
        if process.generation and not self.driver.job.in_place:
            process.interrupted = True
            self._end(process, self.leaves_with)
            return
        process.state, process.asked = "waiting", next(self._asks)
        if self.sealed is not None:
            self.say(process, "beat", commit=self.sealed)
        elif process.generation:
            self._commit(process)
            if held := self.memory.get((process.host, process.slot)):
                self.say(process, "beat", commit=held[:3], step=held[3])
        self._ask_again(process)

    def _commit(self, process: Process) -> None:
        """Commit for a process. All that have agreed on their state do the same steps, with a commit after each."""
        if process.agreed != process.generation:
            return
        process.steps = self._steps[process.generation] = max(process.steps, self._steps[process.generation])
        self.memory[process.host, process.slot] = [1, process.generation, process.steps, process.steps]

    def commit_of(self, process: Process) -> list[int] | None:
        """The commit that a process reports in its heartbeats."""
        return [1, process.generation, process.steps] if process.generation and self.commits else None

    def _ask_again(self, process: Process) -> None:
        self._news(process, "asked", id=process.asked, method="GET", path="/rank_and_size/x:0", body="")

    def _answered(self, process: Process, order: Mapping[str, Any]) -> None:
        assert order["status"] == 200
        process.rank = int(base64.b64decode(order["body"]).decode().split(",")[0])
        process.state, process.asked = "training", None
        process.interrupted = process.lost = False
        process.generation = self.driver.job.generation
        self.later(0.05, self.enter, process)

    def enter(self, process: Process) -> None:
        """A process joins a world, and agrees with the others at once."""
        if process.state == "training":
            self.say(process, "entered", generation=process.generation)
            self.say(process, "looping", **({"call": process.call} if self.calls else {}))
            process.agreed = process.generation
            self.say(process, "synced")

    def ends_unnoticed(self, host: str, code: int) -> None:
        """The processes of a host that are in a world end, and the others do not notice it."""
        for process in self.training:
            if process.host == host:
                process.interrupted = True
                self._end(process, code)

    def _end(self, process: Process, code: int) -> None:
        if process.state == "gone" or process.host in self.undying:
            return
        generation, was_in = process.generation, process.state == "training"
        process.state = "gone"
        self.agents[process.host].pop(process.slot, None)
        process.code, self._ended[process.host, process.slot] = code, process
        if was_in:
            self._commit(process)
        seat = process.host, process.slot
        past = {"past": self.pasts.get(seat, 0)} if self.calls else {}
        self._news(process, "exited", code=code, held=self.memory.get(seat), **past)
        if was_in and not process.interrupted:
            for peer in self._all():
                if peer.generation == generation and peer.host not in self.cut:
                    self.later(0.01, self._lose, peer, generation)

    def says(self, host: str, what: str) -> None:
        """The processes of a host that are in a world send a message about their training."""
        for process in self.training:
            if process.host == host:
                self.say(process, what)

    def finish(self, *, hanging: str | None = None) -> None:
        """Training is done on all ranks. Processes of the host ``hanging`` never end."""
        for process in self.training:
            process.done = True
            self.say(process, "done")
        for process in self.training:
            process.interrupted = True
            if process.host == hanging:
                process.stopped = True
            else:
                self._end(process, 0)

    # --- messages

    def _all(self) -> Iterable[Process]:
        return [process for seats in self.agents.values() for process in seats.values()]

    def warned(self, host: str, *, leaving: bool = True) -> None:
        """The scripts on a host have seen by ``check_alive()`` whether they have to leave."""
        for process in self.training:
            if process.host == host:
                process.warned = leaving
                self.say(process, "warned", leaving=leaving)

    def say(self, process: Process, what: str, **more: Any) -> None:
        self._news(process, "said", message={"say": what, **more})

    def _news(self, process: Process, event: str, **more: Any) -> None:
        if process.host not in self.cut:
            news = {"event": event, "slot": process.slot, "life": process.life, **more}
            self.later(0.001, self._arrive, process.host, news)

    def _arrive(self, host: str, news: dict[str, Any]) -> None:
        if host in self.mute or host not in self._beating:
            return
        if self.lose_news[news["event"]]:
            self.lose_news[news["event"]] -= 1
            return
        if host in self._kept:
            self._kept[host].append(news)
            return
        self._said_lately.setdefault(host, []).append((self.clock.mono(), news))
        self.driver.tell(News(host, news))

    def _beat(self, name: str) -> None:
        if name not in self.agents:
            self._beating.discard(name)
            return
        now = self.clock.mono()
        slots = {}
        for process in self.agents[name].values():
            if not process.stopped:
                process.beat_at = now
                self._train(process)
            if process.state == "booting" and name in self.dumb:
                continue
            age = now - process.beat_at
            slots[str(process.slot)] = {"life": process.life, "age": age, "beat": self._beat_of(process)}
        if name not in self.cut and name not in self._kept:
            self.driver.tell(News(name, {"event": "beats", "slots": slots}))
        self.later(1.0, self._beat, name)

    def _beat_of(self, process: Process) -> dict[str, Any]:
        """What a process reports in its heartbeat."""
        return {
            "step": process.steps,
            "commit": self.commit_of(process),
            "progress": process.progress,
            "waiting": (process.wedged or self._held_up(process)) and not process.stuck,
            "step_s": process.step_s,
            "call_s": self.call_s,
            **({} if process.stepped_at is None else {"stepped_at": process.stepped_at}),
        }

    def _train(self, process: Process) -> None:
        gets_on = process.state == "training" and not self._held_up(process)
        if self.pace is not None and gets_on:
            step_s, now = self.pace(len(self.driver.job.world.members)), self.clock.mono()
            begun = now - 1.0 if process.stepped_at is None else process.stepped_at
            done = int((now - begun) / step_s)
            process.steps, process.stepped_at = process.steps + done, begun + done * step_s
        else:
            process.steps += gets_on * self.steps_a_beat
        if process.state == "training":
            self._steps[process.generation] = max(process.steps, self._steps[process.generation])
        process.progress += gets_on or process.beats
        if process.step_s is not None:
            process.step_s *= 1.0 + 1e-6  # no two steps take the same time

    def _held_up(self, process: Process) -> bool:
        return any(each.stuck and each.generation == process.generation for each in self._all())
