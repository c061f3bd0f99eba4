"""The rules that must hold at every moment, checked by the real state, not by the driver's knowledge of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.launcher.departures.clean_exits import LEAVE_WITHIN_S
from hvd_elastic_ext.simulate.cluster.observer import Observer
from hvd_elastic_ext.simulate.cluster.processes import Commit, Process, World

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.agent import Agent
    from hvd_elastic_ext.simulate.cluster.cluster import Cluster
    from hvd_elastic_ext.simulate.cluster.launcher import Launcher

NOTED_S: Final = 2.5
"""What a launcher learned within these seconds before its end may be unknown to the next one: it notes the newest
commit every second."""
BREAKS_S: Final = 0.05
"""Seconds until a broken connection is noticed and earlier orders have arrived."""
WORD_S: Final = 1.1
"""Greatest age in seconds of the last message of an agent that cannot be reached any more."""
TOLD_S: Final = 15.0
"""Seconds after the forming of a world within which its line is in the journal."""
HEARS_S: Final = 3.0
"""Seconds after a host can be reached again within which its old world has ended."""
KILLED_S: Final = 5.0
"""Seconds for which a launcher has to wait for the end of a process that it has killed: the report of the end says what
memory holds."""
HANDS_OVER: Final = "hosts changed"
"""Cause of a world in which the only rank that has the state is to leave, and gives it to its successors."""

World_ = tuple[int, int]
"""A world: the incarnation of its launcher, and its generation."""


class Broken(AssertionError):
    """The driver has violated a rule."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


@dataclass(frozen=True)
class Claim:
    """A commit behind which a world may not begin, and why."""

    commit: Commit
    why: str


@dataclass
class Loss:
    """A world began this number of batches behind the newest reported commit."""

    key: World_
    batches: int
    at: float
    newest: Commit
    elected: Commit | None


@dataclass
class Oracle(Observer):
    """See the module's docstring. Raises :class:`Broken` at the moment of the violation."""

    cluster: Cluster
    newest_told: Commit | None = None
    """The newest commit reported since the ranks last agreed on their state."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Those of each host that is ever listed."""
    begun: bool = False
    ending: bool = False
    """Whether training is done, or is about to be."""
    left: bool = False
    """Whether all members of the last world have left their training function with exit code 0: what they held may be
    given up, also by a launcher that dies before it has ended the job."""
    undisturbed: bool = False
    """Whether nothing but that, and ends of training calls, can happen to members of a world."""
    losses: list[Loss] = field(default_factory=list)
    trained_at: float = -1.0
    _told: dict[tuple[str, int], Commit] = field(default_factory=dict)
    _believed: list[tuple[float, Commit]] = field(default_factory=list)
    """Commits of agents that have died, and until when no launcher could know of that."""
    _stored: Commit | None = None
    _heard: list[tuple[float, Commit]] = field(default_factory=list)
    """When each commit was reported that was the newest then."""
    _gone: list[Claim] = field(default_factory=list)
    """Commits that the launcher had an agent delete although no other agent held them."""
    _let_go: set[tuple[str, int]] = field(default_factory=set)
    """Agents and slots that were told to end, or to give back memory, whatever they still hold."""
    _killed: dict[tuple[str, int], float] = field(default_factory=dict)
    """Agents and slots with a process that the launcher has killed, and when; until the end of the process is
    reported."""
    _claims: dict[World_, list[Claim]] = field(default_factory=dict)
    _known: dict[World_, Commit | None] = field(default_factory=dict)
    """By world, the newest commit that was reported when ranks were assigned."""
    _reachable: dict[World_, Claim] = field(default_factory=dict)
    _unlisted: dict[str, float] = field(default_factory=dict)
    """When hosts that are not listed any more, or are about to go, count as gone: then their commits may be given
    up."""
    _ranks: dict[tuple[int, int, str, int], int] = field(default_factory=dict)
    _whose: dict[tuple[int, int, int], str] = field(default_factory=dict)
    _left_together: bool = False
    _agreed: list[World_] = field(default_factory=list)
    _calls: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """The training call of a process, by its agent, slot and life, as the present launcher knows it."""

    # --- what is known

    def sealed(self, commit: Commit) -> None:
        """A launcher has learned that a checkpoint is complete. Storage outlives all agents."""
        self._stored = commit if self._stored is None else max(self._stored, commit)

    def commit_reported(self, agent: Agent, slot: int, commit: Commit) -> None:
        """A launcher has received the report of a commit."""
        key = (agent.identity, slot)
        if (before := self._told.get(key)) is None or before < commit:
            self._told[key] = commit
        if self.newest_told is None or self.newest_told < commit:
            self.newest_told = commit
            self._heard.append((self.cluster.sim.now, commit))

    def kill_sent(self, agent: Agent, slot: int) -> None:
        """The launcher has ordered to kill a process. What its memory holds is known only once its end is reported."""
        if slot in agent.processes:
            self._killed.setdefault((agent.identity, slot), self.cluster.sim.now)

    def end_received(self, agent: Agent, slot: int) -> None:
        """The launcher has received the report of a process's end."""
        self._killed.pop((agent.identity, slot), None)

    def listed(self, hosts: Iterable[str], departing: Mapping[str, float | None]) -> None:
        """A new list was accepted."""
        now, wait_s = self.cluster.sim.now, self.cluster.options.commit_wait_s
        hosts = tuple(hosts)
        gone = {host: self._unlisted.get(host, now + wait_s) for host in self.cluster.agents if host not in hosts}
        told = {
            host: min(self._unlisted.get(host, math.inf), now + wait_s) if by is None else by
            for host, by in departing.items()
        }
        self._unlisted = {**gone, **told}

    def _excuse(self, agent: Agent) -> bool:
        """Whether an agent's commits may be given up: it could not be reached, or was about to go, for long enough."""
        cluster, now = self.cluster, self.cluster.sim.now
        wait_s, launcher = cluster.options.commit_wait_s, cluster.launcher
        if agent.down_since is not None:
            born = launcher.born if launcher is not None else now
            if now - max(agent.down_since - WORD_S, born) >= wait_s:
                return True
        return self._overdue(agent)

    def _overdue(self, agent: Agent) -> bool:
        """Whether an agent was about to go for long enough, even if it could be reached in that time."""
        now, wait_s = self.cluster.sim.now, self.cluster.options.commit_wait_s
        leaves = [self._unlisted.get(agent.host), agent.ends_by]
        if agent.going is not None:
            leaves.append(agent.going_since + wait_s if agent.going_by is None else agent.going_by)
        return any(by is not None and now >= by for by in leaves)

    def _held(self, *, without: Agent | None = None, slot: int | None = None) -> Iterator[tuple[Agent, int, Commit]]:
        """Yield the commits in the memory of living agents, as far as they were reported to a launcher."""
        for agent in self.cluster.agents.values():
            for number, held in agent.memory.items():
                told = self._told.get((agent.identity, number))
                if told is not None and not (agent is without and slot in (None, number)):
                    yield agent, number, min(held, told)

    def dies(self, agent: Agent) -> None:
        """An agent ends. Its launcher may count on its commits until it can know of the end."""
        known_s = BREAKS_S if agent.down_since is None else self.cluster.options.heartbeat_timeout_s + WORD_S
        told = [held for each, _, held in self._held() if each is agent]
        if agent.line is not None and (late_s := agent.line.up_at - self.cluster.sim.now) > 0:
            known_s += late_s  # its last message arrives before the report of its end
            told += agent.memory.values()
        if told and not self._excuse(agent):
            self._believed.append((self.cluster.sim.now + known_s, max(told)))

    # --- custody

    def ranks_sent(self, launcher: Launcher) -> None:
        """The launcher assigns ranks: the world may not begin behind any commit that is available now."""
        key = (launcher.incarnation, launcher.driver.job.generation)
        if key in self._claims:
            return
        claims = list(self._gone)
        if self._stored is not None:
            claims.append(Claim(self._stored, "it is on storage"))
        claims += self._untold()
        reachable: Claim | None = None
        for agent, slot, commit in self._held():
            if not self._excuse(agent):
                claims.append(Claim(commit, f"{agent.host}[{slot}] held it when ranks were dealt"))
            if agent.down_since is None and commit.batch and (reachable is None or reachable.commit < commit):
                reachable = Claim(commit, f"{agent.host}[{slot}] held it, and could be reached")
        self._claims[key], self._known[key] = claims, self.newest_told
        if reachable is not None:
            self._reachable[key] = reachable

    def _untold(self) -> Iterator[Claim]:
        """Yield commits of processes that the launcher has killed and whose end is not reported: the launcher has to
        wait for it."""
        for agent in self.cluster.agents.values():
            for slot, held in agent.memory.items():
                at = self._killed.get((agent.identity, slot), -math.inf)
                if self.cluster.sim.now - at < KILLED_S and agent.down_since is None and not self._excuse(agent):
                    yield Claim(held, f"{agent.host}[{slot}] held it, was killed, and was not heard to have ended")

    def released(self, agent: Agent, slot: int | None = None) -> None:
        """The launcher has ordered an agent to end, or to give back a slot's memory."""
        if (
            self.ending
            or self.left
            or self.cluster.launcher is None
            or self.cluster.launcher.driver.outcome is not None
        ):
            return
        if self._overdue(agent):
            return
        mine = [commit for number, commit in agent.memory.items() if slot in (None, number)]
        self._let_go |= {(agent.identity, number) for number in agent.memory if slot in (None, number)}
        told = [self._told[agent.identity, number] for number in agent.memory if (agent.identity, number) in self._told]
        if not mine or not told:
            return
        newest = min(max(mine), max(told))
        if not newest.batch:
            return  # training begins with this commit in any case
        others = [
            held
            for each, number, held in self._held(without=agent, slot=slot)
            if not (self._excuse(each) or (each.identity, number) in self._let_go)
        ]
        others += [] if self._stored is None else [self._stored]
        others += [held for until, held in self._believed if self.cluster.sim.now < until]
        if not others or max(others) < newest:
            what = "was told to end" if slot is None else "was told to forget it"
            self._gone.append(Claim(newest, f"only {agent.host} held it, and {what}"))

    def agreed(self, world: World, elected: Commit | None) -> None:
        """The ranks of a world have agreed on their state; None: training starts again."""
        key = world.key
        for claim in self._claims.get(key, []):
            if elected is None or elected < claim.commit:
                raise Broken("custody", f"world {key} begins {_from(elected)}, behind {claim.commit}: {claim.why}")
        if elected is None and self.begun and key in self._reachable:
            claim = self._reachable[key]
            raise Broken("custody", f"world {key} begins at batch 0, and {claim.commit} is there: {claim.why}")
        newest = self._known.get(key)
        launcher = self.cluster.launcher
        told = launcher is not None and launcher.incarnation == key[0]  # otherwise that launcher is gone
        if told and newest is not None and (elected is None or elected < newest):
            batches = max(0, newest.batch - (elected.batch if elected else 0))
            self.losses.append(Loss(key, batches, self.cluster.sim.now, newest, elected))
        if self.left and self._left_together and self.undisturbed:
            raise Broken("all may leave", f"all ranks have left together, and world {key} trains")
        self.begun, self.left = True, False
        if elected is None or (self.newest_told is not None and elected < self.newest_told):
            self.newest_told = elected
        self._heard = [] if self.newest_told is None else [(self.cluster.sim.now, self.newest_told)]
        self._gone = [claim for claim in self._gone if elected is None or elected < claim.commit]
        self._agreed.append(key)

    def launcher_died(self, launcher: Launcher) -> None:
        """Forget what it had not written yet, and which processes it had killed: the next launcher cannot know of
        these."""
        self._killed.clear()
        self._calls.clear()
        late = self.cluster.sim.now - TOLD_S
        until = (self.cluster.sim.now if launcher.stopped_at is None else launcher.stopped_at) - NOTED_S
        self._heard = [each for each in self._heard if each[0] <= until]
        self.newest_told = max((commit for _, commit in self._heard), default=None)
        self.losses = [loss for loss in self.losses if loss.key[0] != launcher.incarnation or loss.at < late]

    def check_losses(self) -> None:
        """Check that every loss is in the journal with enough steps. Call it when the job is over, or is stable."""
        lines = [json.loads(line) for line in self.cluster.journal.getvalue().splitlines()]
        resized = [line for line in lines if line["event"] == "resized"]
        for loss in self.losses:
            if self._told_of(loss, resized) < loss.batches or not any(self._is_of(loss, line) for line in resized):
                raise Broken(
                    "losses are told",
                    f"world {loss.key} began {_from(loss.elected)}, {loss.batches} batches behind {loss.newest}, "
                    f"and no line says so: {[(line['generation'], line['steps_lost']) for line in resized]}",
                )

    def _told_of(self, loss: Loss, lines: Iterable[Mapping[str, Any]]) -> int:
        """Return the number of batches that the lines name: several worlds that never agreed may share one loss."""
        return sum(line["steps_lost"] for line in lines if self._is_of(loss, line))

    def _is_of(self, loss: Loss, line: Mapping[str, Any]) -> bool:
        """Whether a line belongs to a loss: that of its world, of an earlier world that never agreed, or of the next
        world."""
        before = [generation for _, generation in self._agreed if generation < loss.key[1]]
        after = [generation for _, generation in self._agreed if generation > loss.key[1]]
        within = max(before, default=0) < line["generation"] <= min(after, default=loss.key[1] + 1)
        return within and isinstance(line["steps_lost"], int)

    # --- training calls

    def all_leave(self, world: World, *, apart_s: float = 0.0) -> None:
        """All members of a world leave their training function with exit code 0, the next one ``apart_s`` later."""
        self.left, self._left_together = True, apart_s * (len(world.members) - 1) < LEAVE_WITHIN_S

    def heard(self, agent: Agent, news: Mapping[str, Any]) -> None:
        """A launcher has received the training call that a process is in."""
        for slot, life, call in _calls_in(news):
            self._calls[agent.identity, slot, life] = call

    def called(self, agent: Agent, lives: Mapping[str, int]) -> None:
        """The launcher calls parked processes to a world. Only those that are in the call of the others may come, as
        far as the launcher knows."""
        front = max((call for _, call in self._front()), default=0)
        for slot, life in lives.items():
            process = agent.processes.get(int(slot))
            if process is None or process.life != life or process.state != "parked":
                continue
            mine = self._calls.get((agent.identity, int(slot), life), 0)
            if mine < front:
                who = next(name for name, call in self._front() if call == front)
                raise Broken("one call", f"{process.name} is called in call {mine}, and {who} is in call {front}")

    def _front(self) -> Iterator[tuple[str, int]]:
        """Yield the processes with a trained state that can be reached, each with its call as the launcher knows it."""
        for agent in self.cluster.agents.values():
            for process in agent.processes.values():
                key = (agent.identity, process.slot)
                trains = process.agreed and process.state in ("training", "syncing", "between", "asking")
                if trains and not process.stopped and agent.down_since is None and key not in self._killed:
                    yield process.name, min(process.call, self._calls.get((*key, process.life), 0))

    def entered(self, world: World) -> None:
        """The members of a world are connected: nobody is before its loop while others are in it, and no spare is
        beside the process that it replaces.
        """
        most, names = self.cluster.options.limits.most, ", ".join(process.name for process in world.members)
        launcher = self.cluster.launcher
        # A launcher that was started meanwhile has not decided about this world.
        others = launcher is None or launcher.incarnation != world.key[0]
        hands_over = others or launcher.driver.job.world.decision.cause == HANDS_OVER
        if most is not None and len(world.members) > most and not hands_over:
            raise Broken("a spare takes a place", f"world {world.key} has more than {most} members: {names}")
        for host, count in Counter(process.host for process in world.members).items():
            if count > self.slots.get(host, count):
                raise Broken("a spare takes a place", f"{host} has fewer slots than members in {world.key}: {names}")
        having = Counter((each.host, each.agent.devices.get((each.slot, each.life))) for each in world.members)
        for (host, device), count in having.items():
            if device is not None and count > 1:
                raise Broken("a spare takes a place", f"{host} has {count} members of {world.key} on {device}: {names}")
        if len({process.at_init for process in world.members}) > 1:
            names = [process.name for process in world.members if process.at_init]
            raise Broken("one call", f"{', '.join(names)} in hvd.init(), and others in the loop of world {world.key}")

    def _one_call(self, world: World) -> None:
        """All members of a world that trains are in the same call, and it is not over."""
        for process in world.members:
            if process.call != world.call:
                raise Broken("one call", f"{process.name} is in call {process.call}, in a world of call {world.call}")
            if len(process.past) > process.call:
                raise Broken("no call twice", f"{process.name} trains call {process.call}, and has its result")

    # --- worlds

    def steps(self, world: World, count: int) -> None:
        """A world does a step. No other world may train at the same time, unless none of its processes could be told to
        stop."""
        now = self.cluster.sim.now
        self.trained_at = now
        self._one_call(world)
        for other in self.cluster.training.worlds:
            if other is world or other.phase != "training" or now - other.stepped_at > 1.5 * self.cluster.times.step_s:
                continue
            older, newer = sorted((world, other), key=lambda each: each.key)
            outdated = older.interrupted and older.elected < newer.elected  # its next commit is its last, and no newer
            if not (outdated or self._unheard(older)):
                raise Broken("one world", f"worlds {world.key} and {other.key} train at once")

    def _unheard(self, world: World) -> bool:
        """Whether no process of a world could be told to stop, until a moment ago."""
        now = self.cluster.sim.now
        agents = [process.agent for process in world.members]
        return all(agent.down_since is not None or now - agent.back_at <= HEARS_S for agent in agents)

    def rank_given(self, process: Process, *, incarnation: int, rank: int) -> None:
        """A process has received its rank."""
        world = (incarnation, process.assigned_world)
        if self._ranks.setdefault((*world, process.name, process.life), rank) != rank:
            raise Broken("one rank", f"{process.name} was told two ranks in world {world}")
        if self._whose.setdefault((*world, rank), process.name) != process.name:
            both = f"{self._whose[incarnation, process.assigned_world, rank]} and {process.name}"
            raise Broken("one rank", f"rank {rank} of world {world} was told to {both}")


def _calls_in(news: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield slot, life and training call of each process that is named in a message of an agent."""
    message = news.get("message")
    if isinstance(message, dict) and message.get("say") in ("parked", "looping"):
        yield news["slot"], news["life"], message["call"]
    for slot, status in news.get("seats", {}).items():
        if status["state"] == "running" and "call" in status:
            yield int(slot), status["life"], status["call"]


def _from(elected: Commit | None) -> str:
    return "anew" if elected is None else f"from {elected}"
