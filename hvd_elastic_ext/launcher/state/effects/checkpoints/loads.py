"""A host has loaded the newest checkpoint into its commit memory before the first world, or has failed to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.checkpoints.finished import Finished
from hvd_elastic_ext.launcher.custody.holders import read, whole_number
from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer, Purpose
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.facts.checkpoints import holding
from hvd_elastic_ext.launcher.state.parts.checkpoints import Loading

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0
"""Pause after a host could not read its storage."""


def agent_lost(job: JobState, host: str) -> None:
    """A connection was lost, and with it perhaps an answer."""
    job.helpers[Purpose.RESTORE].pop(host, None)
    loading = job.restore.hosts.get(host)
    if loading is not None and not loading.ready:
        loading.again_at = job.now


def answered(job: JobState, agent: Agent, answer: HelperAnswer) -> None:
    """A host has loaded the newest checkpoint, or found none, or failed."""
    host = agent.host.name
    loading = job.restore.hosts[host]
    del job.helpers[Purpose.RESTORE][host]
    if answer.failed is not None:
        _failed(job, host, loading, answer.failed, answer.content)
    else:
        loading.ready = True
        _loaded(job, agent, loading, answer.content)


def _loaded(job: JobState, agent: Agent, loading: Loading, answer: Mapping[str, Any]) -> None:
    state = job.restore
    host, held = agent.host.name, read(answer.get("held"))
    step, path, generation = (
        whole_number(answer.get("step")),
        answer.get("path"),
        whole_number(answer.get("generation")),
    )
    passed_over, filled = answer.get("passed_over"), answer.get("slots")
    for passed in passed_over if isinstance(passed_over, list) else ():
        job.record("checkpoint_skipped", host=host, reason=str(passed))
    if not isinstance(path, str) or step is None:
        return  # none here: training starts from the beginning, unless another host has one
    if answer.get("done") is True:
        state.done = state.done or Finished(path, step)
        return
    slots = [each for each in filled if whole_number(each) is not None] if isinstance(filled, list) else None
    loading.seats = frozenset(Seat(host, slot) for slot in (loading.slots if slots is None else slots))
    state.why = None
    commit = answer.get("commit")
    loaded = read([*commit, step]) if isinstance(commit, list) else None
    commits = job.roster.commits
    first_slot = Seat(host, slots[0]) if slots else None
    for seat in loading.seats:
        has = held if seat == first_slot and held is not None else loaded
        if has is not None and ((known := commits.commit_of(seat)) is None or known < has[0]):
            commits.reported(seat, *has, agent=agent.identity)
    if generation is not None:
        job.generation = max(job.generation, generation)
    job.checkpoints.readers |= {host}
    first, state.path = state.path is None, path
    if first:
        facts = answer.get("facts")
        attempt.resumed_from(job, path, step, facts if isinstance(facts, dict) else {}, loaded and loaded[0])
        call = whole_number(answer.get("call"))
        fields = {"path": path, "step": step, "call": call, "host": host}
        job.record("resumed", **fields, reason=f"the newest checkpoint is {path}")


def _failed(job: JobState, host: str, loading: Loading, why: str, answer: Mapping[str, Any]) -> None:
    now, unwritable = job.now, answer.get("unwritable") is True
    loading.slots, loading.again_at, loading.for_good = [], now + RETRY_S, answer.get("for_good") is True
    what = "write checkpoints (--checkpoint-dir)" if unwritable else "load a checkpoint"
    message = f"{host} cannot {what}: {why}"
    if why != job.restore.reported.get(host) and (holding(job) or not unwritable):  # most tries fail for one reason
        job.restore.reported[host] = why
        log.warning("%s", message)
        job.record("not_resumed", host=host, reason=why)
    if holding(job):
        loading.ready, loading.again_at = True, None  # it gets the state from a host that has loaded it
    else:
        job.restore.why = message
