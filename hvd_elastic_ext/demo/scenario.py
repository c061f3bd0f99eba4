"""The events of the demo, and the decision what comes next.

Pure: an event is data, :func:`decide` is ``(now, seen, …) -> (decision, reason)``. Events follow the job's progress;
the clock only limits the wait for an effect.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hvd_elastic_ext.demo.observed import Observed, Worker


@dataclass(frozen=True, slots=True)
class SetHosts:
    """Publish a hosts file with these hosts, one slot each."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteText:
    """Put this text where the hosts file is."""

    text: str


@dataclass(frozen=True, slots=True)
class Kill:
    """``kill -9`` the worker of rank 0, or the newest worker on another host."""

    rank_0: bool = False


@dataclass(frozen=True, slots=True)
class KillLauncher:
    """``kill -9`` the launcher, which is restarted."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Give these hosts notice, as a cloud would, that they end in so many seconds."""

    hosts: tuple[str, ...]
    in_s: float


@dataclass(frozen=True, slots=True)
class TakeAway:
    """Kill everything on these hosts, and leave only ``left`` in the hosts file."""

    hosts: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """Do nothing: the effect comes by itself."""


Action = SetHosts | WriteText | Kill | KillLauncher | Notify | TakeAway | Watch


class Effect(enum.Enum):
    """The effect of an event."""

    WORLD = "a new world trains"
    NOTHING = "the present world trains on"
    REFUSED = "the list is refused, and the present world trains on"
    RELAUNCHED = "the launcher is back, and the present world trains on"
    SAVED = "there is a checkpoint of all that was trained, and no rank trains beyond it"
    ASLEEP = "the job sleeps"


@dataclass(frozen=True, slots=True)
class Event:
    """One event and its effect."""

    name: str
    action: Action
    """Happens after ``after_steps`` of the present world."""
    effect: Effect = Effect.WORLD
    """Must follow within ``within_s`` seconds."""
    size: int = 0
    """Of the new world."""
    causes: tuple[str, ...] = ()
    """The new world has one of these."""
    after_steps: int = 15
    then_steps: int = 5
    """Steps that the new world does, or the one that goes on."""
    within_s: float = 60.0
    max_lost: int = 0
    """Most steps that a rank may lose."""


STEPS_S: Final = 60.0
"""Seconds for the steps before an event."""

FIRST, SECOND, THIRD = "localhost", "127.0.0.1", "127.0.0.2"
START: Final = (FIRST, SECOND)
ALL: Final = (FIRST, SECOND, THIRD)
LEARNS_S: Final = 120.0
"""Seconds for the job to measure steps: on a busy machine steps vary, and more are measured."""
SPOT_S: Final = 30.0
"""The shortest notice of a cloud."""
SHORT_S: Final = 18.0
"""So short that the first checkpoint may be the last one, too."""
GARBAGE: Final = "<html>502 Bad Gateway</html>\n\x00\x01 not:a:host list\n"


def full_scenario(*, commit_every: int) -> tuple[Event, ...]:
    """The whole demo."""
    begin, grow, killed, back, *spot_and_sleep, relaunched, refused, drained = _events(commit_every)
    rank_0 = replace(killed, name="kill -9 of rank 0 itself", action=Kill(rank_0=True))
    again = replace(grow, name="the drained host comes again")
    return begin, grow, killed, back, rank_0, back, *spot_and_sleep, relaunched, drained, refused, again


def quick_scenario(*, commit_every: int) -> tuple[Event, ...]:
    """Each kind of event once."""
    return tuple(replace(event, after_steps=min(event.after_steps, 8)) for event in _events(commit_every))


def sizing_scenario() -> tuple[Event, ...]:
    """A job that chooses its number of hosts, of :data:`ALL`, and starts with the first one."""
    return (
        Event("one host starts", Watch(), size=1, causes=("start",), within_s=90.0),
        Event("it tries a second one, which pays", Watch(), size=2, causes=("hosts added",), within_s=LEARNS_S),
        Event("so a third one comes", Watch(), size=3, causes=("hosts added",), within_s=LEARNS_S),
        Event(
            "it does not pay, and goes",
            Watch(),
            size=2,
            causes=("hosts removed",),
            then_steps=15,
            within_s=LEARNS_S,
        ),
    )


def _events(commit_every: int) -> tuple[Event, ...]:
    return (
        Event("two hosts start", Watch(), size=2, causes=("start",), within_s=90.0),
        Event("a third host comes", SetHosts(ALL), size=3, causes=("hosts added",)),
        # Not a multiple of commit_every: a kill right after a commit would cost nothing.
        Event(
            "kill -9 of a worker",
            Kill(),
            size=2,
            causes=("worker failed",),
            after_steps=3 * commit_every + 3,
            max_lost=commit_every,
        ),
        Event("its host is back after the cooldown", Watch(), size=3, causes=("cooldown over", "hosts added")),
        # A host that leaves in time loses nothing.
        Event(
            "a spot notice to one host",
            Notify((THIRD,), in_s=SPOT_S),
            size=2,
            causes=("hosts removed",),
            within_s=SPOT_S,
        ),
        Event("its machine is gone", TakeAway((THIRD,), left=START), Effect.NOTHING),
        Event("a spot notice to every host", Notify(START, in_s=SHORT_S), Effect.SAVED, within_s=SHORT_S),
        Event("they are gone, one other is left", TakeAway(START, left=(THIRD,)), Effect.ASLEEP, after_steps=0),
        Event("hosts are back", SetHosts(ALL), size=3, causes=("start", "hosts added"), after_steps=0, within_s=90.0),
        Event("kill -9 of the launcher", KillLauncher(), Effect.RELAUNCHED),
        Event("garbage in the hosts file", WriteText(GARBAGE), Effect.REFUSED),
        Event("a host is removed from the list", SetHosts((FIRST, THIRD)), size=2, causes=("hosts removed",)),
    )


@dataclass(frozen=True, slots=True)
class Position:
    """The present event, and counts at its start (or action)."""

    index: int = 0
    acted: bool = False
    since: float = 0.0
    """Monotonic time."""
    worlds: int = 0
    launchers: int = 0
    refused: int = 0
    sealed: int = 0
    sleeps: int = 0
    steps: int = 0
    lost: int = 0


class ScenarioStep(enum.Enum):
    """The next thing to do."""

    WAIT = "wait"  # for steps or an effect; look again soon
    ACT = "act"  # do the event's action, then `acted`
    NEXT = "next"  # the effect is there; go on with `next_position`
    FAIL = "fail"  # there is no effect; the demo ends here
    OVER = "over"  # all effects are there; only the job's own end is left


def decide(now: float, seen: Observed, position: Position, scenario: Sequence[Event]) -> tuple[ScenarioStep, str]:
    """Choose what to do now, and say why."""
    if position.index >= len(scenario):
        return ScenarioStep.OVER, "every event has shown its effect; training goes on to its end"
    event = scenario[position.index]
    if position.acted:
        shown, reason = effect(seen, position, event)
        if shown:
            return ScenarioStep.NEXT, reason
    else:
        reason = f"{event.after_steps} steps of this world"
    if seen.finished is not None:
        return ScenarioStep.FAIL, f"{event.name}: the job ended (exit code {seen.finished}) while waiting for {reason}"
    limit = event.within_s if position.acted else STEPS_S
    if now - position.since > limit:
        return ScenarioStep.FAIL, f"{event.name}: waited {limit:.0f} s without success for {reason}"
    if not position.acted and (seen.world.steps >= event.after_steps or isinstance(event.action, Watch)):
        return ScenarioStep.ACT, event.name
    return ScenarioStep.WAIT, reason


def effect(seen: Observed, position: Position, event: Event) -> tuple[bool, str]:
    """Whether the event has its effect, with what was seen, or what is missing."""
    if event.effect is Effect.SAVED:
        return _saved(seen, position)
    if event.effect is Effect.ASLEEP:
        asleep = seen.sleeps > position.sleeps
        return asleep, "asleep: only the launcher is left" if asleep else "the job to sleep"
    if event.effect is not Effect.WORLD:
        return _unmoved(seen, position, event)
    match = _match(seen, position, event)
    if match is None:
        return False, f"a world of {event.size} ({' or '.join(event.causes)}); it is {_world_text(seen)}"
    steps = seen.worlds[match].steps
    if steps < event.then_steps:
        return False, f"{event.then_steps - steps} more steps in the new world of {event.size}"
    return True, f"world of {event.size} ({seen.worlds[match].cause}), and it trains"


def _match(seen: Observed, position: Position, event: Event) -> int | None:
    """Find the world of the effect: the first that has done its steps, else the first that fits."""
    fitting = [
        i
        for i, world in enumerate(seen.worlds)
        if i >= position.worlds and world.size == event.size and world.cause in event.causes
    ]
    return next((i for i in fitting if seen.worlds[i].steps >= event.then_steps), fitting[0] if fitting else None)


def _unmoved(seen: Observed, position: Position, event: Event) -> tuple[bool, str]:
    if event.effect is Effect.RELAUNCHED and seen.launchers == position.launchers:
        return False, "the launcher to be back"
    if event.effect is Effect.REFUSED and seen.refused == position.refused:
        return False, "the launcher to refuse the list"
    if len(seen.worlds) > position.worlds:
        return False, f"an unchanged world; it is {_world_text(seen)}"
    left = event.then_steps - (seen.steps - position.steps)
    if left > 0:
        return False, f"{left} more steps in the same world"
    return True, f"{_SAID.get(event.effect, '')}training went on"


_SAID: Final = {Effect.RELAUNCHED: "started again, and ", Effect.REFUSED: "refused, and "}


def _saved(seen: Observed, position: Position) -> tuple[bool, str]:
    if len(seen.sealed) == position.sealed:
        return False, "a checkpoint"
    if seen.sealed[-1] < seen.step:
        return False, f"a last checkpoint: after that of step {seen.sealed[-1]} training went on to {seen.step}"
    return True, f"a checkpoint of step {seen.sealed[-1]}, and no rank trains beyond it"


def _world_text(seen: Observed) -> str:
    return f"{seen.world.size} ({seen.world.cause})" if seen.worlds else "not formed yet"


def acted(now: float, seen: Observed, position: Position, event: Event) -> Position:
    """The position after the action; only later records count as its effect."""
    counts = {"launchers": seen.launchers, "refused": seen.refused, "sealed": len(seen.sealed), "sleeps": seen.sleeps}
    marked = replace(position, acted=True, since=now, steps=seen.steps, lost=len(seen.lost), **counts)
    if isinstance(event.action, Watch):
        return marked  # the effect may be there already
    return replace(marked, worlds=len(seen.worlds))


def next_position(now: float, seen: Observed, position: Position, event: Event) -> Position:
    """The position of the next event."""
    match = _match(seen, position, event) if event.effect is Effect.WORLD else None
    return Position(index=position.index + 1, since=now, worlds=position.worlds if match is None else match + 1)


def too_many_lost(seen: Observed, position: Position, event: Event) -> str | None:
    """A failure if more steps were lost than the event allows."""
    lost = max(seen.lost[position.lost :], default=0)
    if lost <= event.max_lost:
        return None
    return f"{event.name}: {lost} steps were lost; at most {event.max_lost} may be"


def worker_to_kill(seen: Observed, action: Kill) -> Worker | None:
    """The worker to kill: rank 0, or the newest worker elsewhere. None if there is none."""
    if not seen.rank_0_host:
        return None
    suited = [w for w in seen.workers if (w.host == seen.rank_0_host) is action.rank_0]
    return suited[-1] if suited else None
