"""The rules that every job must follow under any faults, checked by what its processes and the watch wrote. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from hvd_elastic_ext.core.journal import Record
from tests.faults.chaos.lines import Line, Process

OVERLAP_S: Final = 10.0
"""Longest time in seconds for which processes of an old world may train on before they learn that it is over."""
TOLD_S: Final = 3.0
"""Longest time in seconds until the launcher knows of a commit, unless the commit's agent is stopped."""
LATE_S: Final = 0.5
"""Longest delay in seconds until the watch sees a commit in memory."""
RETURN_S: Final = 15.0
"""Longest time in seconds until a killed launcher is replaced and has messages from its agents."""


class Seen(NamedTuple):
    """``watched``: lines of the watch. ``resized``, ``sealed``: these records of the journal. ``goal``: the last step,
    or None."""

    processes: tuple[Process, ...]
    watched: tuple[Line, ...]
    resized: tuple[Record, ...] = ()
    sealed: tuple[Record, ...] = ()
    goal: int | None = None


class World(NamedTuple):
    """A world that processes have entered. ``at``: when it formed; ``step``: the lowest step with which a rank
    began."""

    generation: int
    at: float
    entered_at: float
    step: int
    agents: frozenset[int]


def violations(seen: Seen) -> list[str]:
    """Return all violations of the rules, one line each; empty if there are none."""
    checks: tuple[Callable[[Seen], Iterator[str]], ...] = (weights, agreement, steps, one_world, custody, the_end)
    return [said for check in checks for said in check(seen)]


def weights(seen: Seen) -> Iterator[str]:
    """Check that the weight equals the number of the step."""
    for each in seen.processes:
        for line in each.lines:
            if "weight" in line.fields and float(line.fields["weight"]) != line.number:
                yield f"{each}: the weight is not the number of steps: {line}"


def agreement(seen: Seen) -> Iterator[str]:
    """Check that in each world all ranks begin with the same step, each rank has one process, and neither size nor
    ranks change."""
    entered: dict[int, set[int]] = defaultdict(set)
    sizes: dict[int, set[int]] = defaultdict(set)
    ranks: dict[tuple[int, int], set[int]] = defaultdict(set)
    places: dict[tuple[int, int], set[int]] = defaultdict(set)
    for each in seen.processes:
        for line in each.lines:
            if "rank" not in line.fields:
                continue
            generation, rank = line.number_of("generation"), line.number_of("rank")
            sizes[generation].add(line.number_of("size"))
            ranks[generation, rank].add(each.pid)
            places[generation, each.pid].add(rank)
            if line.kind == "enter":
                entered[generation].add(line.number)
    yield from (f"world {world}: ranks begin with steps {sorted(at)}" for world, at in entered.items() if len(at) > 1)
    yield from (f"world {world}: it has sizes {sorted(size)}" for world, size in sizes.items() if len(size) > 1)
    yield from (f"world {world}: rank {rank} is of {sorted(of)}" for (world, rank), of in ranks.items() if len(of) > 1)
    yield from (f"world {world}: {pid} has ranks {sorted(of)}" for (world, pid), of in places.items() if len(of) > 1)


def steps(seen: Seen) -> Iterator[str]:
    """Check that within a world each process does one step after the other, from the step with which it entered."""
    for each in seen.processes:
        counted = [line for line in each.lines if line.kind in ("enter", "step")]
        for before, after in pairwise(counted):
            if after.kind == "step" and after.number != before.number + 1:
                yield f"{each}: {after} follows {before}"


def one_world(seen: Seen) -> Iterator[str]:
    """Check that processes outside the newest world do not train on for long."""
    begins = [(world.entered_at, world.generation) for world in worlds(seen)]
    for each in seen.processes:
        late = [
            line
            for generation, line in each.in_worlds()
            if line.kind == "step" and any(line.at > at + OVERLAP_S and newer > generation for at, newer in begins)
        ]
        if late:
            yield f"{each} trains on in a world that is over: {late[0]}"


def places_of_spares(seen: Seen, *, slots: int, most: int | None) -> Iterator[str]:
    """Check that a spare never trains beside the rank that it replaces: no world is larger than ``--max-np`` allows,
    and no host has more ranks than ``slots``. A rank that alone has the state may be in one more world, to hand it on.
    """
    for record in seen.resized:
        size, hosts = record.get("size"), record.get("hosts")
        if most is not None and size > most and record.get("cause") != "hosts changed":
            yield f"world {record.generation}: it has {size} members, more than {most}"
        yield from (f"world {record.generation}: {count} on {host}" for host, count in hosts.items() if count > slots)


def the_end(seen: Seen) -> Iterator[str]:
    """Check that all ranks of the last world have reached the end of training."""
    if seen.goal is None:
        return
    last = max((world.generation for world in worlds(seen)), default=0)
    for each in seen.processes:
        generations = [generation for generation, _ in each.in_worlds()]
        if generations and generations[-1] == last and each.lines[-1].kind != "done":
            yield f"{each} was in the last world and did not come to its end: {each.lines[-1]}"
    done = {line.number for each in seen.processes for line in each.lines if line.kind == "done"}
    if done != {seen.goal}:
        yield f"training ended after steps {sorted(done)}, not {seen.goal}"


def worlds(seen: Seen) -> list[World]:
    """Return the worlds that processes have entered, in order."""
    formed: dict[int, float] = {}
    for record in seen.resized:
        formed[record.generation] = min(record.mono, formed.get(record.generation, record.mono))
    entries: dict[int, list[tuple[Line, int]]] = defaultdict(list)
    for each in seen.processes:
        for line in each.lines:
            if line.kind == "enter":
                entries[line.number_of("generation")].append((line, each.agent))
    return [_world(generation, entries[generation], formed) for generation in sorted(entries)]


def _world(generation: int, entries: list[tuple[Line, int]], formed: Mapping[int, float]) -> World:
    entered_at = min(line.at for line, _ in entries)
    at = min(entered_at, formed.get(generation, entered_at))
    agents = frozenset(agent for _, agent in entries)
    return World(generation, at, entered_at, min(line.number for line, _ in entries), agents)


def custody(seen: Seen) -> Iterator[str]:
    """Check that no world begins behind a commit that an agent holds or that is durable, and that each loss is
    journalled."""
    return Custody(seen).said()


class Commit(NamedTuple):
    """A commit that was seen in an agent's memory."""

    at: float
    name: str
    step: int


@dataclass(slots=True)
class Holder:
    """An agent. ``commits``: the commits that it was seen to hold, in order; the last one counts.

    ``stands_still``: times in which it was stopped. ``excused``: times in which no world has to wait for it. ``over``:
    when the watch saw its end; ``killed``: when the watch killed it.
    """

    pid: int
    host: str
    commits: list[Commit] = field(default_factory=list)
    stands_still: list[tuple[float, float]] = field(default_factory=list)
    excused: list[tuple[float, float]] = field(default_factory=list)
    killed: float | None = None
    over: float | None = None

    def __str__(self) -> str:
        return f"agent {self.pid} of {self.host}"

    def owes(self, at: float, void: set[str]) -> Commit | None:
        """Return the commit of this agent behind which no world that forms at ``at`` may begin; None if there is
        none."""
        if self.killed is not None and self.killed <= at:
            return None
        if any(begin <= at and self._leaves(at, end) for begin, end in self.excused):
            return None
        until = at
        for begin, end in self.stands_still:
            if begin <= at <= end + TOLD_S:
                until = min(until, begin - TOLD_S)
        held = [commit for commit in self.commits if commit.at <= until]
        return held[-1] if held and held[-1].name not in void else None

    def _leaves(self, at: float, end: float) -> bool:
        """Whether it is still excused at ``at``, or ended before it could learn that it has to stay."""
        return at <= end or (self.over is not None and self.over <= end + TOLD_S)

    @property
    def ends(self) -> list[float]:
        return [at for at in (self.killed, self.over) if at is not None]

    def silent_from(self) -> Iterator[float]:
        """Yield the times from which it could send nothing for a while: when it was stopped, and its end."""
        yield from (begin for begin, _ in self.stands_still)
        yield from self.ends

    def unheard_from(self, unheard: Iterable[tuple[float, float]]) -> float:
        """Return the start of the span in ``unheard`` in which it ended; infinite if it ended in none of them."""
        return min((begin for begin, until in unheard if any(begin <= end <= until for end in self.ends)), default=inf)


class Custody:
    """Goes through all observations in the order of time."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._holders = holders(seen.watched)
        self._void: set[str] = set()
        """Names of commits that are newer than the beginning of a later world."""
        self._lost = {record.generation: record.get("steps_lost") for record in seen.resized}
        self._without_launcher = [line.at for line in seen.watched if line.kind == "no_launcher"]
        self._unheard = list(unheard_spans(self._without_launcher))

    def said(self) -> Iterator[str]:
        for world in worlds(self._seen):
            yield from self._behind(world)
            yield from self._untold(world)
            self._forget(world)

    def _behind(self, world: World) -> Iterator[str]:
        for holder in self._holders:
            owed = holder.owes(world.at, self._void)
            # An agent that ends regularly gives up only commits that others held at that moment.
            if owed is None or owed.step <= world.step or self._passed_on(holder, owed, world):
                continue
            ended = "" if holder.over is None or holder.over > world.at else f", and ended at {holder.over:.3f}"
            yield (
                f"world {world.generation} began at {world.at:.3f} with step {world.step}, though {holder} held "
                f"{owed.step} ({owed.name}) since {owed.at:.3f}{ended}"
            )
        durable = [record for record in self._seen.sealed if record.mono <= world.at]
        step = max((record.get("step") for record in durable), default=0)
        if step > world.step:
            yield f"world {world.generation} began at {world.at:.3f} with step {world.step}: {step} is durable"

    def _passed_on(self, holder: Holder, owed: Commit, world: World) -> bool:
        """Whether the agent had ended before, and another agent was seen with the same commit or a newer one from then
        on."""
        if holder.over is None or holder.over > world.at:
            return False
        return any(
            commit.step >= owed.step and commit.name not in self._void and commit.at <= holder.over + LATE_S
            for other in self._holders
            if all(end is None or end > holder.over for end in (other.killed, other.over))
            for commit in other.commits
        )

    def _untold(self, world: World) -> Iterator[str]:
        """Check the lost steps in the journal, for commits that the launcher knew of and that are lost."""
        lost = max((commit.step for commit in self._told(world)), default=0) - world.step
        said, number = world.generation in self._lost, self._lost.get(world.generation)
        unsaid = not said and any(world.at <= at <= world.at + RETURN_S for at in self._without_launcher)
        if lost > 0 and not unsaid and (not isinstance(number, int) or number < lost):
            words = f"steps_lost {number}" if said else "nothing of it"
            yield f"world {world.generation} began {lost} steps behind a commit; the journal says {words}"

    def _told(self, world: World) -> Iterator[Commit]:
        """Yield the commits that the launcher knew of and that are not void."""
        for holder in self._holders:
            unheard_from = holder.unheard_from(self._unheard)
            for commit in holder.commits:
                until = min((at for at in holder.silent_from() if at >= commit.at), default=world.at)
                if commit.name not in self._void and commit.at <= min(until, world.at, unheard_from) - TOLD_S:
                    yield commit

    def _forget(self, world: World) -> None:
        for holder in self._holders:
            late = world.at if holder.pid in world.agents else world.entered_at + 1.0
            self._void |= {each.name for each in holder.commits if each.at <= late and each.step > world.step}


def unheard_spans(ends: Iterable[float]) -> Iterator[tuple[float, float]]:
    """Yield the spans in which no launcher may have had messages from an agent. ``ends``: when launchers were killed,
    in order.

    A launcher that is killed within :data:`RETURN_S` of the one before may have had none, so both spans are one.
    """
    begin = until = -inf
    for at in ends:
        if at > until:
            if until > begin:
                yield begin, until
            begin = at
        until = at + RETURN_S
    if until > begin:
        yield begin, until


def holders(watched: Iterable[Line]) -> list[Holder]:
    """Return what the watch saw of each agent."""
    found: dict[int, Holder] = {}
    for line in watched:
        if line.kind in ("agent", "held", "killed", "over", "still", "excused"):
            holder = found.setdefault(line.number, Holder(line.number, line.fields["host"]))
            _take(holder, line)
    return list(found.values())


def _take(holder: Holder, line: Line) -> None:
    if line.kind == "held":
        holder.commits.append(Commit(line.at, line.fields["commit"], line.number_of("step")))
    elif line.kind == "killed":
        holder.killed = holder.killed or line.at
    elif line.kind == "over":
        holder.over = line.at
    elif line.kind in ("still", "excused"):
        span = (line.at, float(line.fields["until"]))
        (holder.stands_still if line.kind == "still" else holder.excused).append(span)
