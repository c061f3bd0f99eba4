"""Whether the launcher has lost its own link. If so, no host is cut off for a while, and nothing is decided.

A silent host is cut off so that the others of its world can continue. If all hosts are silent, none could continue.
Then most likely all of them train, and the link of the launcher's machine is broken.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import RECONNECT_S, Agent
from hvd_elastic_ext.launcher.rules.health.link_loss import is_isolated
from hvd_elastic_ext.launcher.state.facts.health import heard_of_world
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


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
    reason = f"nothing was heard of any host of the world for {silent_s:.1f} s: is this machine's link down?"
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
        log.warning("hosts are heard again")
        state.back_by = now + max(options.heartbeat_timeout_s, RECONNECT_S)
    return back < len(agents) and now < state.back_by
