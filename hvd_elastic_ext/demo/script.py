"""The script of events, and the decision what comes next in it.

Pure: a scene is data, :func:`decide` is ``(now, seen, …) -> (decision, reason)``.
Scenes follow the job's own progress, never the clock; the clock only says when
to stop waiting for an effect.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hvd_elastic_ext.demo.progress import Seen, Worker


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
    """``kill -9`` the worker that is rank 0, or the one on the youngest other host."""

    rank_0: bool = False


@dataclass(frozen=True, slots=True)
class KillLauncher:
    """``kill -9`` the launcher; whoever looks after it starts it again."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell these hosts, as a cloud would, that their machines are taken back in so many seconds."""

    hosts: tuple[str, ...]
    in_s: float


@dataclass(frozen=True, slots=True)
class TakeAway:
    """Machines are gone: whatever runs on these hosts is killed, and only those ``left`` are in the hosts file."""

    hosts: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """Do nothing: what is expected comes by itself."""


Action = SetHosts | WriteText | Kill | KillLauncher | Notify | TakeAway | Watch


class Effect(enum.Enum):
    """What a scene has to show."""

    WORLD = "a new world trains"
    NOTHING = "the world there is trains on"
    REFUSED = "the list is refused, and the world there is trains on"
    RELAUNCHED = "the launcher is there again, and the world there is trains on"
    SAVED = "there is a checkpoint of all that was trained, and nobody trains beyond it"
    ASLEEP = "the job sleeps"


@dataclass(frozen=True, slots=True)
class Scene:
    """One event of the script and the effect it must have.

    ``after_steps`` of the present world trigger ``act``. Within ``within_s``
    seconds ``effect`` must show: a new world is one of ``size`` for one of
    ``causes`` that has done ``then_steps`` steps; where the world must not change
    it has to do that many. No rank may lose more than ``max_lost`` steps.
    """

    name: str
    act: Action
    effect: Effect = Effect.WORLD
    size: int = 0
    causes: tuple[str, ...] = ()
    after_steps: int = 15
    then_steps: int = 5
    within_s: float = 60.0
    max_lost: int = 0


PATIENCE_S: Final = 60.0
"""How long a running world may take for the steps that trigger the next scene."""

FIRST, SECOND, THIRD = "localhost", "127.0.0.1", "127.0.0.2"
START: Final = (FIRST, SECOND)
ALL: Final = (FIRST, SECOND, THIRD)
SPOT_S: Final = 30.0
"""What the clouds with the shortest notice give."""
SHORT_S: Final = 18.0
"""So short a notice that the first checkpoint is the last one, too: there may be no time for another."""
GARBAGE: Final = "<html>502 Bad Gateway</html>\n\x00\x01 not:a:host list\n"


def full_script(*, commit_every: int) -> tuple[Scene, ...]:
    """The whole demo."""
    begin, grow, killed, back, *spot_and_sleep, relaunched, refused, drained = _scenes(commit_every)
    rank_0 = replace(killed, name="kill -9 of rank 0 itself", act=Kill(rank_0=True))
    again = replace(grow, name="the drained host comes again")
    return begin, grow, killed, back, rank_0, back, *spot_and_sleep, relaunched, drained, refused, again


def quick_script(*, commit_every: int) -> tuple[Scene, ...]:
    """Each kind of event once."""
    return tuple(replace(scene, after_steps=min(scene.after_steps, 8)) for scene in _scenes(commit_every))


def _scenes(commit_every: int) -> tuple[Scene, ...]:
    return (
        Scene("two hosts start", Watch(), size=2, causes=("start",), within_s=90.0),
        Scene("a third host comes", SetHosts(ALL), size=3, causes=("hosts added",)),
        # Not a multiple of commit_every: a kill right after a commit would hide what one can cost.
        Scene(
            "kill -9 of a worker",
            Kill(),
            size=2,
            causes=("worker failed",),
            after_steps=3 * commit_every + 3,
            max_lost=commit_every,
        ),
        Scene("its host is back after the cooldown", Watch(), size=3, causes=("cooldown over", "hosts added")),
        # Whoever has left before its time is over loses nothing when it is.
        Scene(
            "a spot notice to one host",
            Notify((THIRD,), in_s=SPOT_S),
            size=2,
            causes=("hosts removed",),
            within_s=SPOT_S,
        ),
        Scene("its machine is gone", TakeAway((THIRD,), left=START), Effect.NOTHING),
        Scene("a spot notice to every host", Notify(START, in_s=SHORT_S), Effect.SAVED, within_s=SHORT_S),
        Scene("they are gone, one other is left", TakeAway(START, left=(THIRD,)), Effect.ASLEEP, after_steps=0),
        Scene("hosts are back", SetHosts(ALL), size=3, causes=("start",), after_steps=0, within_s=90.0),
        Scene("kill -9 of the launcher", KillLauncher(), Effect.RELAUNCHED),
        Scene("garbage in the hosts file", WriteText(GARBAGE), Effect.REFUSED),
        Scene("a host is taken away politely", SetHosts((FIRST, THIRD)), size=2, causes=("hosts removed",)),
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the script is, and what had been seen when its scene began (or acted).

    ``since`` is monotonic; all others count.
    """

    index: int = 0
    acted: bool = False
    since: float = 0.0
    worlds: int = 0
    launchers: int = 0
    refused: int = 0
    sealed: int = 0
    nights: int = 0
    steps: int = 0
    lost: int = 0


class Decision(enum.Enum):
    """What to do now."""

    WAIT = "wait"  # for steps or for an effect; look again soon
    ACT = "act"  # perform the scene's action, then `acted`
    NEXT = "next"  # the effect has shown, go on with `next_stage`
    FAIL = "fail"  # it has not, and will not; the script ends here
    OVER = "over"  # every scene has shown its effect; only the job's own end is left


def decide(now: float, seen: Seen, stage: Stage, script: Sequence[Scene]) -> tuple[Decision, str]:
    """Choose what to do now, and say why."""
    if stage.index >= len(script):
        return Decision.OVER, "every event has shown its effect; training goes on to its end"
    scene = script[stage.index]
    if stage.acted:
        shown, reason = effect(seen, stage, scene)
        if shown:
            return Decision.NEXT, reason
    else:
        reason = f"{scene.after_steps} steps of this world"
    if seen.finished is not None:
        return Decision.FAIL, f"{scene.name}: the job ended (exit code {seen.finished}) while waiting for {reason}"
    limit = scene.within_s if stage.acted else PATIENCE_S
    if now - stage.since > limit:
        return Decision.FAIL, f"{scene.name}: waited {limit:.0f} s in vain for {reason}"
    if not stage.acted and (seen.world.steps >= scene.after_steps or isinstance(scene.act, Watch)):
        return Decision.ACT, scene.name
    return Decision.WAIT, reason


def effect(seen: Seen, stage: Stage, scene: Scene) -> tuple[bool, str]:
    """Whether the scene has had its effect; with what was seen, or what is still missing."""
    if scene.effect is Effect.SAVED:
        return _saved(seen, stage)
    if scene.effect is Effect.ASLEEP:
        asleep = seen.nights > stage.nights
        return asleep, "asleep: no process is left but the launcher" if asleep else "the job to sleep"
    if scene.effect is not Effect.WORLD:
        return _unmoved(seen, stage, scene)
    match = _match(seen, stage, scene)
    if match is None:
        return False, f"a world of {scene.size} ({' or '.join(scene.causes)}); it is {_world_text(seen)}"
    steps = seen.worlds[match].steps
    if steps < scene.then_steps:
        return False, f"{scene.then_steps - steps} more steps in the new world of {scene.size}"
    return True, f"world of {scene.size} ({seen.worlds[match].cause}), and it trains"


def _match(seen: Seen, stage: Stage, scene: Scene) -> int | None:
    """Which world is the effect: the first that has done its steps, else the first that fits at all."""
    fitting = [
        i
        for i, world in enumerate(seen.worlds)
        if i >= stage.worlds and world.size == scene.size and world.cause in scene.causes
    ]
    return next((i for i in fitting if seen.worlds[i].steps >= scene.then_steps), fitting[0] if fitting else None)


def _unmoved(seen: Seen, stage: Stage, scene: Scene) -> tuple[bool, str]:
    if scene.effect is Effect.RELAUNCHED and seen.launchers == stage.launchers:
        return False, "the launcher to be there again"
    if scene.effect is Effect.REFUSED and seen.refused == stage.refused:
        return False, "the launcher to refuse the list"
    if len(seen.worlds) > stage.worlds:
        return False, f"nothing at all to happen to the world; it is {_world_text(seen)}"
    left = scene.then_steps - (seen.steps - stage.steps)
    if left > 0:
        return False, f"{left} more steps in the same world"
    return True, f"{_SAID.get(scene.effect, '')}training never noticed"


_SAID: Final = {Effect.RELAUNCHED: "started again, and ", Effect.REFUSED: "refused, and "}


def _saved(seen: Seen, stage: Stage) -> tuple[bool, str]:
    if len(seen.sealed) == stage.sealed:
        return False, "a checkpoint"
    if seen.sealed[-1] < seen.step:
        return False, f"a last checkpoint: after that of step {seen.sealed[-1]} training went on to {seen.step}"
    return True, f"a checkpoint of step {seen.sealed[-1]}, and nobody trains beyond"


def _world_text(seen: Seen) -> str:
    return f"{seen.world.size} ({seen.world.cause})" if seen.worlds else "not formed yet"


def acted(now: float, seen: Seen, stage: Stage, scene: Scene) -> Stage:
    """The stage after the scene's action; only what comes from now on counts as its effect."""
    told = {"launchers": seen.launchers, "refused": seen.refused, "sealed": len(seen.sealed), "nights": seen.nights}
    marked = replace(stage, acted=True, since=now, steps=seen.steps, lost=len(seen.lost), **told)
    if isinstance(scene.act, Watch):
        return marked  # what comes by itself may have come already
    return replace(marked, worlds=len(seen.worlds))


def next_stage(now: float, seen: Seen, stage: Stage, scene: Scene) -> Stage:
    """The stage of the scene that follows one whose effect has shown."""
    match = _match(seen, stage, scene) if scene.effect is Effect.WORLD else None
    return Stage(index=stage.index + 1, since=now, worlds=stage.worlds if match is None else match + 1)


def complaint(seen: Seen, stage: Stage, scene: Scene) -> str | None:
    """What is wrong with an effect that has shown: more steps lost than may be."""
    lost = max(seen.lost[stage.lost :], default=0)
    if lost <= scene.max_lost:
        return None
    return f"{scene.name}: {lost} steps were lost; at most {scene.max_lost} may be"


def victim(seen: Seen, act: Kill) -> Worker | None:
    """Whom to kill: rank 0, or the worker started last elsewhere. None while nobody suits."""
    if not seen.rank_0_host:
        return None
    suited = [w for w in seen.workers if (w.host == seen.rank_0_host) is act.rank_0]
    return suited[-1] if suited else None
