"""When a world of processes that cannot change worlds ends, for another one. Pure.

The members are decided as in any job. Horovod's processes would continue in another world; these end: all with the same
commit, or at once if one is lost.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from hvd_elastic_ext.launcher.membership import next_world
from hvd_elastic_ext.launcher.membership.next_world import Situation, Stage, WorldDecision, WorldLimits
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

LOSS_CAUSES: Final = ("worker failed", "connection lost", next_world.FINISHED)
BACK_S: Final = 30.0
"""Longest time from the end of a process for a change until the next one is on standby in its seat."""


class ChangeAction(Enum):
    """What is to be done about the world."""

    NOTHING = "nothing"
    """The world stays, or too few processes are ready for one. Next: any other."""
    FORM = "form"
    """No process is in a world; the given members form the next one."""
    DRAIN = "drain"
    """All members end at one and the same step. Next: FORM, or END if one is lost on the way."""
    END = "end"
    """A member is lost: the others cannot continue, and end now. Next: FORM."""


class ChangeDecision(NamedTuple):
    """``decision``: for FORM the members; else cause and reason of the change, without members."""

    move: ChangeAction
    decision: WorldDecision


def decide(
    now: float,
    situation: Situation,
    limits: WorldLimits,
    *,
    done: Collection[ProcessId] = (),
    ended: Mapping[Seat, float] = MappingProxyType({}),
    starting_until: float = -math.inf,
) -> ChangeDecision:
    """Decide the next action. ``done``: members that ended well without an order to end.

    ``ended``: when members ended for this change (mono): their seats are being filled, and are awaited.
    ``starting_until``: until when members may be about to begin their training: newcomers do not interrupt that.
    """
    decision = next_world.decide(now, situation, limits)
    inside = frozenset(members_in(situation))
    if not inside:
        back_by = _back_by(now, situation, ended)
        if decision.members is not None and back_by is not None:
            return ChangeDecision(ChangeAction.NOTHING, WorldDecision(None, "", "some are about to be back", back_by))
        return ChangeDecision(ChangeAction.NOTHING if decision.members is None else ChangeAction.FORM, decision)
    lost = [life for life in situation.members if life not in inside]
    quiet = replace(decision, members=None)
    if any(life in done for life in lost):
        # A script without an elastic loop ends like that, one rank after the other; also where some have failed.
        return ChangeDecision(
            ChangeAction.NOTHING, WorldDecision(None, "", "some have ended well; the others are about to")
        )
    if decision.cause in LOSS_CAUSES:
        return ChangeDecision(ChangeAction.END, quiet)
    if decision.cause == "hosts added" and now < starting_until:
        return ChangeDecision(
            ChangeAction.NOTHING, WorldDecision(None, "", "newcomers wait for the others to start", starting_until)
        )
    if decision.members is not None:
        return ChangeDecision(ChangeAction.DRAIN, quiet)
    return ChangeDecision(ChangeAction.NOTHING, decision)


def _back_by(now: float, situation: Situation, ended: Mapping[Seat, float]) -> float | None:
    """Until when the next processes of ended members are awaited (mono); None if none is."""
    parked = {seat for seat, process in situation.processes.items() if process.stage is Stage.PARKED}
    until = [ended[seat] + BACK_S for seat in situation.wanted if seat in ended and seat not in parked]
    return max((at for at in until if at > now), default=None)


def members_in(situation: Situation) -> tuple[ProcessId, ...]:
    """Members of the newest world that live, in their order: messages follow it, in a replay too."""
    found = ((life, situation.processes.get(life.seat)) for life in situation.members)
    return tuple(life for life, each in found if each is not None and each.life == life and each.stage is Stage.LIVE)
