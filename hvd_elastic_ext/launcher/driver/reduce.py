"""Which function takes in which event: this table, and nothing else. Planners decide what follows, at the next look.

An event changes the state where the capability is that it concerns. A new event is one function there and one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from hvd_elastic_ext.launcher.checkpoints import attempt, restore, save_then_stop
from hvd_elastic_ext.launcher.custody import custody, transfers
from hvd_elastic_ext.launcher.departures import notices, shutdown
from hvd_elastic_ext.launcher.driver import events, orders
from hvd_elastic_ext.launcher.driver.events import Event
from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer, Purpose, answer_of
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent, Worker
from hvd_elastic_ext.launcher.health import ends, strikes
from hvd_elastic_ext.launcher.health.launcher_pauses import launcher_paused
from hvd_elastic_ext.launcher.membership import adoption, agents, calls, forming, host_list, processes, reports, resizes
from hvd_elastic_ext.launcher.membership.in_place_or_restarted import engine_of
from hvd_elastic_ext.launcher.scaling import scaling


def reduce(job: JobState, event: Event) -> None:
    """Apply an event to the state, as of :attr:`JobState.now`."""
    match event:
        case events.News(host, news):
            _news(job, host, news)
        case events.HostsChanged():
            host_list.listed(job, event)
        case events.AgentJoined(host, hello):
            agents.joined(job, host, hello)
        case events.AgentUnfit(host, why):
            agents.unfit(job, host, why)
        case events.AgentLost(host, reason):
            agents.lost(job, host, reason)
        case events.LaunchEnded(host, code, remark):
            agents.launch_ended(job, host, code, remark)
        case events.AgentEnded(host, code, remark):
            shutdown.answered(job, host, well=code == 0, why=remark or f"exit code {code}")
        case events.LauncherPaused(seconds):
            launcher_paused(job, seconds)
        case events.PeersChanged(host):
            orders.tell_peers(job, host)
        case events.Expected(hosts_left, until):
            adoption.expect(job, hosts_left, until=until)
        case events.HealthChanged():
            strikes.changed_by_hand(job, event)
        case events.WorldNotBegun(generation, why):
            engine_of(job).world_not_begun(job, generation, why)
        case events.Scaled() | events.HostsAskedFor() | events.ScaleByHand() | events.Observed():
            scaling.apply(job, event)
        case events.End(why):
            shutdown.end(job, why)
        case events.Look():
            pass


def _news(job: JobState, host: str, news: Mapping[str, Any]) -> None:
    """A message of an agent: about one of its processes, or about the agent and its host."""
    agent = job.roster.agents.get(host)
    if agent is None:
        return
    agent.last_message_at = job.now
    event = str(news.get("event"))
    if (handler := _OF_PROCESSES.get(event)) is None:
        _OF_AGENTS.get(event, custody.in_memory)(job, agent, news)
        return
    if "held" in news:
        custody.in_memory(job, agent, news)
    worker = job.roster.of(host, news.get("slot"), news.get("life"))
    if worker is not None:
        handler(job, worker, news)


def _said(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    message = news.get("message")
    if isinstance(message, dict) and isinstance(say := message.get("say"), str):
        _SAID.get(say, reports.note)(job, worker, message)


def _helper(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    for purpose, asked in job.helpers.items():
        if (agent.host.name, news.get("id")) in asked.items():
            _ANSWERED[purpose](job, agent, answer_of(news))


_OfAgent = Callable[[JobState, Agent, Mapping[str, Any]], None]
_OfProcess = Callable[[JobState, Worker, Mapping[str, Any]], None]

_OF_AGENTS: Final[Mapping[str, _OfAgent]] = {
    "beats": reports.heartbeats,
    "helper": _helper,
    "helper_ended": _helper,
    "usage": agents.usage,
    "refused": agents.refused,
    "left": agents.left,
    "dropped": agents.dropped,
    "notice": notices.sent_away,
    "going": notices.about_to_go,
    "staying": notices.staying,
    "advised": notices.advised,
    "notices_unavailable": notices.unavailable,
}
"""All others are about commits in memory."""

_ANSWERED: Final[Mapping[Purpose, Callable[[JobState, Agent, HelperAnswer], None]]] = {
    Purpose.CHECKPOINT: attempt.answered,
    Purpose.RESTORE: restore.answered,
    Purpose.SAVE: save_then_stop.answered,
    Purpose.TRANSFER: transfers.answered,
    Purpose.PAST: calls.answered,
}

_OF_PROCESSES: Final[Mapping[str, _OfProcess]] = {
    "started": processes.started,
    "said": _said,
    "asked": forming.asked,
    "unasked": forming.withdrawn,
    "exited": ends.exited,
    "not_started": ends.not_started,
}

_SAID: Final[Mapping[str, _OfProcess]] = {
    "parked": processes.parked,
    "result": calls.result,
    "entered": forming.entered,
    "record": reports.record,
    "commit_kept": attempt.commit_kept,
    "last_commit": attempt.last_commit,
    "commit_not_kept": attempt.commit_not_kept,
    "first_step": resizes.first_step,
}
"""All others only change what is known of the process."""
