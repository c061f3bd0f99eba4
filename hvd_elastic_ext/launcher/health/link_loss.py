"""Whether the launcher has lost its own link. If so, no host is cut off for a while, and nothing is decided.

A silent host is cut off so that the others of its world can continue. If all hosts of the world are silent, or its only
one, none could continue. Then most likely they train, and the link of the launcher's machine is broken.
``job.decisions_held`` says so: hosts are not cut off, and ``adoption.plan``, early in the list of planners, ends the
look.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.driver.roster import RECONNECT_S
from hvd_elastic_ext.launcher.driver.words import Wait
from hvd_elastic_ext.launcher.health.stalls import heard_of_world

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent

log = logging.getLogger(__name__)


def is_isolated(now: float, last_messages: Sequence[float], *, limit_s: float, grace_s: float) -> bool:
    """Whether hosts are silent, and no other host of the world could continue without them. Pure.

    ``last_messages``: the time of each host's last message. Hosts send three messages in ``limit_s``, so half of it
    without one counts as silence here. Hosts that are all silent for longer than ``grace_s`` are gone.
    """
    if not last_messages or now - min(last_messages) <= limit_s:
        return False
    return limit_s / 2 < now - max(last_messages) <= max(limit_s, grace_s)


# --- state


@dataclass(slots=True)
class LinkLoss:
    """``since``: since when no host of the world sends messages (mono); ``back_by``: until when hosts that are back
    wait for the others.
    """

    since: float | None = None
    back_by: float | None = None


def link_is_back_by(job: JobState) -> float | None:
    """When decisions are made again at the latest (mono); None if the launcher has its link."""
    state, options = job.link_loss, job.options
    if state.since is None or state.back_by is not None:
        return state.back_by
    newest = max((agent.last_message_at for agent in heard_of_world(job)), default=job.now)
    return newest + max(options.heartbeat_timeout_s, options.orphan_grace_s)


def waits(job: JobState) -> Wait | None:
    """No host is heard, and all decisions wait."""
    if job.link_loss.since is None:
        return None
    then = ", then hosts that stay silent count as failed"
    return Wait("nothing is heard from any host: is this machine's own link down?", link_is_back_by(job), then)


# --- planner


def plan(job: JobState) -> Plan:
    """Note whether the launcher has lost its link; ``adoption.plan`` stops the look for that."""
    job.decisions_held = _holds_decisions(job)
    return NOTHING


def _holds_decisions(job: JobState) -> bool:
    """Whether hosts may be silent for now, and all decisions wait."""
    now, state = job.now, job.link_loss
    options = job.options
    latest = now - options.heartbeat_timeout_s
    if state.since is None and job.roster.all_sent_after(latest):
        return False  # nearly always
    if state.since is None and not any(0 < each.last_message_at < latest for each in job.roster.agents.values()):
        return False
    agents = heard_of_world(job)
    if state.since is None:
        last_messages = [agent.last_message_at for agent in agents]
        if not is_isolated(now, last_messages, limit_s=options.heartbeat_timeout_s, grace_s=options.orphan_grace_s):
            return False
        _begin(job, agents)
        return True
    if _is_still_isolated(job, agents):
        return True
    state.since = state.back_by = None
    return False


def _begin(job: JobState, agents: Sequence[Agent]) -> None:
    now = job.now
    job.link_loss.since = now
    silent_s = now - max(agent.last_message_at for agent in agents)
    names = [agent.host.name for agent in agents]
    reason = f"nothing was heard from any host of the world for {silent_s:.1f} s: is this machine's link down?"
    job.record("isolated", hosts=names, reason=reason)


def _is_still_isolated(job: JobState, agents: Sequence[Agent]) -> bool:
    now, state = job.now, job.link_loss
    assert state.since is not None
    options = job.options
    back = sum(agent.last_message_at > state.since for agent in agents)
    if not back:
        last_messages = [agent.last_message_at for agent in agents]
        return is_isolated(now, last_messages, limit_s=options.heartbeat_timeout_s, grace_s=options.orphan_grace_s)
    if state.back_by is None:
        log.warning("hosts send messages again")
        state.back_by = now + max(options.heartbeat_timeout_s, RECONNECT_S)
    return back < len(agents) and now < state.back_by
