"""How many hosts the job asks for: by hand, or as ``--autoscale`` decides by steps, load and prices.

This module keeps what was measured, asked for and decided. It gives a policy what it decides by, chooses the hosts that
go, and requests or releases hosts (``scalers`` does that outside). A host that goes gets no work first, and is released
once none of its processes trains. A request that fails costs only itself: it is made again.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.launcher.driver import actions, events
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.roster import USAGE
from hvd_elastic_ext.launcher.scaling.decide import Decision, Memory, ScaleLimits, decide
from hvd_elastic_ext.launcher.scaling.observations import Observations, SpeedLog
from hvd_elastic_ext.launcher.scaling.policies import Chosen, parse

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.options import ScaleOptions

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Scaling:
    """The state of ``--autoscale``: requests, decisions, and what was learned."""

    since: float
    """Its start (mono)."""
    wanted: int | None = None
    """Hosts that were asked for last; None before the first request."""
    by_hand: int | None = None
    """The number that a user has asked for; None: the policy decides."""
    leaving: frozenset[str] = frozenset()
    """Listed hosts that are to go: they get no work."""
    unasked: bool = False
    """:attr:`wanted` is not requested yet."""
    ask_at: float = -math.inf
    """No request before then (mono): the last one has failed."""
    asked_at: float = -math.inf
    """When the last request was made (mono)."""
    look_at: float = -math.inf
    """No decision before then (mono)."""
    reason: str = ""
    """The reason of the newest decision."""
    asked_because: str = ""
    """The reason of the newest change."""
    gpu_unknown: bool = False
    """It was logged that there is no value for GPUs."""
    recommended: int | None = None
    """The size that was recommended last, where nothing is asked for."""
    log: SpeedLog = field(default_factory=SpeedLog)
    memory: Memory = field(default_factory=Memory)
    seen: tuple[int, int, tuple[int, float] | None] | None = None
    """By the newest heartbeat of rank 0: generation, step, and from what on the next steps are measured, a number of
    steps and a time, None before the first step of its world. None before the first heartbeat of its world.
    """
    steps: float = 0.0
    host_steps: float = 0.0
    """The number of steps, and the sum over steps of their numbers of hosts."""
    counted: int | None = None
    """The newest counted step of an earlier launcher: later ones are counted at the first heartbeat."""
    resize_s: float = 1.0
    """Seconds without a step that a change costs: the median of the latest ones."""
    pauses_s: tuple[float, ...] = ()
    signals: dict[str, float | Mapping[str, float]] = field(default_factory=dict)
    """By name, observed values other than step times."""

    def paused(self, seconds: float) -> None:
        """A change of the world has cost this time."""
        self.pauses_s = (*self.pauses_s, seconds)[-9:]
        self.resize_s = median(self.pauses_s)


# --- what it decides by


def signals_of(job: JobState) -> dict[str, float]:
    """All signals: means of the hosts, rank 0's observations, and what the launcher reads itself."""
    names = {life.seat.host for life in job.world.members}
    own = {name: value for name, value in job.scaling.signals.items() if not isinstance(value, Mapping)}
    by_host = {name: value for name, value in job.scaling.signals.items() if isinstance(value, Mapping)}
    by_host["price"] = {name: price for name in names if (price := price_of(job, name)) is not None}
    means = {name: fmean(of) for name, value in by_host.items() if (of := [value[h] for h in names & value.keys()])}
    signals = {**means, **own}
    members = job.roster.present(job.world.members)
    agents = [job.roster.agents.get(name) for name in {worker.seat.host for worker in members}]
    for name in USAGE:
        values = [agent.usage[name] for agent in agents if agent is not None and name in agent.usage]
        if values:
            signals[name] = sum(values) / len(values)
    if times := [worker.iteration_s for worker in members if worker.iteration_s is not None]:
        signals["iteration"] = max(times)
    for worker in members:
        if job.rank(worker.life) == 0:
            signals |= worker.observed
    return signals


# --- what hosts cost


def price_of(job: JobState, host: str) -> float | None:
    """The price of a host for an hour: by the signal if it is given by host, else by its source; None if unknown."""
    prices = job.scaling.signals.get("price")
    if isinstance(prices, Mapping) and host in prices:
        return prices[host]
    listed = job.fleet.hosts.get(host)
    try:
        price = float("" if listed is None else listed.price)
    except ValueError:
        return None
    return price if math.isfinite(price) and price > 0 else None


# --- which hosts go when it asks for fewer


SLOW: Final = 1.3
"""A host is slow if its step takes this many times the median; smaller differences are noise."""
_ORDINAL: Final = re.compile(r"(.*?)(\d+)\Z")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What counts for or against a host."""

    name: str
    price: float | None = None
    """Of an hour; None if unknown."""
    strikes: int = 0
    """Its faults that still count."""
    step_s: float | None = None
    """Seconds of a step of its slowest process, without the wait for others; None if unknown."""


def leaving(hosts: Sequence[HostFacts], count: int, *, ordered: bool) -> tuple[str, ...]:
    """Return the ``count`` of ``hosts`` (most senior first) to remove. ``ordered``: the cluster removes those with the
    highest numbers, like a StatefulSet. Else the dearest go first, then the most often struck, then those that are much
    slower than most, then the youngest.
    """
    if count <= 0:
        return ()
    if ordered:
        chosen = sorted(hosts, key=_ordinal, reverse=True)
    else:
        young = {host.name: number for number, host in enumerate(hosts)}
        usual = median([host.step_s for host in hosts if host.step_s] or [0.0])

        def slow(host: HostFacts) -> float:
            return host.step_s if host.step_s is not None and host.step_s > SLOW * usual else 0.0

        chosen = sorted(
            hosts,
            key=lambda host: (host.price or 0.0, host.strikes, slow(host), young[host.name]),
            reverse=True,
        )
    return tuple(host.name for host in chosen[:count])


def _ordinal(host: HostFacts) -> tuple[int, str]:
    """Return the number at the end of the first label. A name without one is removed last."""
    found = _ORDINAL.match(host.name.partition(".")[0])
    return (int(found[2]), host.name) if found else (-1, host.name)


# --- what happens


RETRY_S: Final = 30.0
"""Pause after a request that failed."""
SETTLED_S: Final = 30.0
"""A number that is read within this time after a request may be older than the request."""


def apply(job: JobState, event: events.Scaled | events.HostsAskedFor | events.ScaleByHand | events.Observed) -> None:
    """Apply one event."""
    match event:
        case events.Scaled(hosts, why):
            _answered(job, hosts, why)
        case events.HostsAskedFor(hosts):
            _asked_for(job, hosts)
        case events.ScaleByHand(hosts):
            job.scaling.by_hand = hosts
            job.scaling.look_at = job.now
            job.save()
        case events.Observed(signals):
            job.scaling.signals = dict(signals)  # a signal that cannot be read any more has no value


def _answered(job: JobState, hosts: int, why: str | None) -> None:
    state = job.scaling
    if why is None:
        return
    job.record("not_scaled", hosts=hosts, reason=why)
    state.unasked, state.ask_at = True, job.now + RETRY_S


def _asked_for(job: JobState, hosts: int) -> None:
    """Others have changed the number: follow it, and keep what was learned."""
    state = job.scaling
    if state.unasked or hosts == state.wanted or job.now < state.asked_at + SETTLED_S:
        return
    if state.wanted is not None:
        job.record("scaled", hosts=hosts, before=state.wanted, leaving=[], reason="changed by others")
    state.wanted = hosts
    state.memory = Memory(changes=state.memory.changes)


# --- planner


GPU: Final = "gpu"
PAUSE_S, UNCHANGED_PAUSE_S = 2.0, 10.0
"""Time between two decisions; after one that is the same as before, for the same reason."""


def plan(job: JobState) -> Plan:
    """Note steps, decide, and ask for hosts."""
    options, state = job.options.scaling, job.scaling
    if options is None:
        return NOTHING
    _note_steps(job)
    _release_hosts(job, options)
    if state.by_hand is not None:
        return _by_hand(job, options, state.by_hand)
    if not job.settled or not job.world.members or job.decisions_held:
        return NOTHING
    if job.now < state.look_at:
        return Plan(again_at=state.look_at)
    chosen = chosen_of(options.policy)
    _log_unknown_gpu(job, chosen)
    limits = limits_of(job, options, chosen)
    decision, memory = decide(job.now, chosen.policy(state.since), observed(job), limits, state.memory)
    if decision.change and not options.acts:
        _recommend(job, decision)  # nothing changes, so nothing has to be saved
    else:
        state.memory = memory
        if decision.change:
            _change(job, options, decision)
    same = decision.reason == state.reason and not decision.change
    state.reason, state.look_at = decision.reason, job.now + (UNCHANGED_PAUSE_S if same else PAUSE_S)
    return Plan(again_at=state.look_at)


def _by_hand(job: JobState, options: ScaleOptions, wanted: int) -> Plan:
    """The size that a user has asked for, at once, even while the job waits for hosts."""
    limits = limits_of(job, options, chosen_of(options.policy))
    size = max(limits.least, min(limits.most, wanted))
    if options.acts and size != observed(job).wanted:
        _change(job, options, Decision(size, "asked for by hand", True))
    return NOTHING


@functools.lru_cache(maxsize=4)
def chosen_of(text: str) -> Chosen:
    """The policy that ``--autoscale`` names; it was checked when the job began."""
    return parse(text)


def limits_of(job: JobState, options: ScaleOptions, chosen: Chosen) -> ScaleLimits:
    """Bounds of the job, in hosts, and the parameters in the policy's text."""
    slots = max((host.slots for host in job.fleet.hosts), default=1)
    least = max(1, math.ceil(job.options.limits.least / slots))
    most = options.most_hosts if job.options.limits.most is None else job.options.limits.most // slots
    more = {name: int(value) if name == "changes" else value for name, value in chosen.limits.items()}
    return ScaleLimits(least, max(least, most), **more)  # type: ignore[arg-type]


def observed(job: JobState) -> Observations:
    """The input of a decision."""
    state = job.scaling
    names, signals = {life.seat.host for life in job.world.members}, signals_of(job)
    size, prices = len(names), (price_of(job, name) for name in names)
    return Observations(
        size,
        _wanted(job, size),
        state.log.speeds(),
        signals,
        state.resize_s,
        state.steps,
        state.host_steps,
        signals.get("price"),
        tuple(price for price in prices if price is not None),
    )


def _wanted(job: JobState, size: int) -> int:
    """Hosts that were requested last; before the first request, those of the world."""
    state = job.scaling
    return state.wanted if state.wanted is not None else max(size, len(job.fleet.hosts) - len(state.leaving))


def _noted_signals(job: JobState) -> dict[str, float]:
    """What was observed, for the journal."""
    return {name: float(f"{value:.4g}") for name, value in sorted(signals_of(job).items())}


def _log_unknown_gpu(job: JobState, chosen: Chosen) -> None:
    """Log once why a policy that uses GPUs gets no value for them."""
    if GPU not in chosen.signals or job.scaling.gpu_unknown:
        return
    for name, agent in job.roster.agents.items():
        if agent.gpu_unknown:
            job.scaling.gpu_unknown = True
            log.warning("--autoscale %s: host %s cannot tell how busy its GPUs are: %s", GPU, name, agent.gpu_unknown)
            return


def _note_steps(job: JobState) -> None:
    """Note step times, by the heartbeats of rank 0. The first step of a world includes waiting for others.

    While hosts are being added, step times do not count for a size: newcomers start, perhaps beside the training.
    """
    state, members = job.scaling, job.roster.present(job.world.members)
    first = next((worker for worker in members if job.rank(worker.life) == 0), None)
    if first is None or not job.settled or not first.moved_at:
        state.seen = None
        return
    seen, size = state.seen, len({life.seat.host for life in job.world.members})
    if seen is None or seen[0] != job.generation:
        state.seen = (job.generation, first.step, None)
        if state.counted is not None:  # steps without a launcher
            missed, state.counted = max(0, first.step - state.counted), None
            state.steps += missed
            state.host_steps += missed * size
        return
    done = first.step - seen[1]
    if done <= 0:
        return
    now = first.stepped or (first.step, first.moved_at if first.stepped_at is None else first.stepped_at)
    state.seen = (job.generation, first.step, now)
    state.steps += done
    state.host_steps += done * size
    if (last := seen[2]) is not None and now[0] > last[0] and now[1] > last[1] and size == _wanted(job, size):
        step_s = (now[1] - last[1]) / (now[0] - last[0])
        state.log = state.log.seen(size, [step_s], [first.step_s] if first.step_s else ())


def _recommend(job: JobState, decision: Decision) -> None:
    if decision.size != job.scaling.recommended:
        job.scaling.recommended = decision.size
        fields = {"trial": decision.trial, "observed": _noted_signals(job)}
        job.record("scale_recommended", hosts=decision.size, reason=decision.reason, **fields)


def _change(job: JobState, options: ScaleOptions, decision: Decision) -> None:
    state, before = job.scaling, observed(job)
    training = [host for host in job.fleet.hosts if host.name not in state.leaving]
    facts = [_facts(job, host.name) for host in training]
    go = leaving(facts, len(training) - decision.size, ordered=options.ordered)
    staying = [host.name for host in job.fleet.hosts if host.name in state.leaving]
    back = staying[: max(0, decision.size - len(training))]  # these hosts are still there, so no others are needed
    state.wanted = decision.size
    state.leaving = state.leaving.difference(back) | frozenset(go)
    state.asked_because = decision.reason
    fields = {"before": before.wanted, "leaving": list(go), "trial": decision.trial, "observed": _noted_signals(job)}
    job.record("scaled", hosts=decision.size, reason=decision.reason, **fields)
    state.unasked = True
    job.save()


def _release_hosts(job: JobState, options: ScaleOptions) -> None:
    """Release hosts that are to go, once none of them trains."""
    state = job.scaling
    state.leaving = frozenset(name for name in state.leaving if name in job.fleet.hosts)
    if not state.unasked and state.wanted is not None and len(job.fleet.hosts) <= state.wanted:
        state.leaving = frozenset()  # others have gone, and these are needed
    if not state.unasked or state.wanted is None or job.now < state.ask_at or not options.acts:
        return
    if any(job.roster.on(name) for name in state.leaving):
        return
    state.unasked, state.asked_at = False, job.now
    job.do(actions.Scale(state.wanted, tuple(sorted(state.leaving)), state.asked_because))


def _facts(job: JobState, host: str) -> HostFacts:
    records = job.faults.ledger.records
    strikes = sum(record.strikes_left(job.now) for subject, record in records.items() if subject.name == host)
    times = [worker.step_s for worker in job.roster.on(host) if worker.step_s]
    return HostFacts(host, price_of(job, host), strikes, max(times, default=None))
