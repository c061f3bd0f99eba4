"""One job over a trace, from its start to the end of its training or of the trace."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from hvd_elastic_ext.core.errors import Asleep, JobFailed
from hvd_elastic_ext.core.goodput import share
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import Sink
from hvd_elastic_ext.launcher.driver.events import Observed, Scaled
from hvd_elastic_ext.launcher.folder.state_json import Saved, saved_of
from hvd_elastic_ext.launcher.job.job import pause_before_restart
from hvd_elastic_ext.launcher.membership import spares
from hvd_elastic_ext.launcher.options.settings import RunSettings
from hvd_elastic_ext.launcher.sleep import sleep_policy
from hvd_elastic_ext.launcher.sleep.sleep_policy import SleepAction, SleepFacts
from hvd_elastic_ext.simulate.accounting import CATEGORIES, Accounts
from hvd_elastic_ext.simulate.cluster.cluster import Cluster, NoJournal
from hvd_elastic_ext.simulate.cluster.launcher import Launcher
from hvd_elastic_ext.simulate.cluster.processes import World
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.cluster.training import step_fields
from hvd_elastic_ext.simulate.cluster.virtual_time import BEGIN_S, Sim
from hvd_elastic_ext.simulate.supply import Supply, first_hosts
from hvd_elastic_ext.simulate.traces.rows import Row, Trace

Watch = Callable[[float], None]
"""Gets the share of a trace that is simulated, again and again."""
CUT_S: Final = 600.0
"""Seconds for which a vanished host counts as a host without a network."""


@dataclass(frozen=True, slots=True)
class Work:
    """``rank_steps``: number of steps of all ranks after which training is done; None: it ends with the trace.

    ``price``: that of a slot for an hour, if the trace has none; ``prices``: those of kinds of hosts.
    """

    rank_steps: int | None = None
    price: float = 0.0
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """``slot_seconds``: by category, see :data:`CATEGORIES`. ``took_s``: seconds until training was done, or None.

    ``kept``: steps of all ranks that count; ``done``: all steps of all ranks; ``steps``: the newest step.
    ``lost``: repeated steps. ``downtime_s``: seconds without a step between two worlds, except sleeps.
    ``failed``, ``failed_s``: why and when the job has failed. Its hosts are idle then, until the trace ends.
    ``events``, ``looks``: those of the simulation.
    ``sizes``: numbers of hosts that it has requested. If there are any, only hosts that the job had count.
    """

    slot_seconds: Mapping[str, float]
    lasted_s: float
    took_s: float | None
    kept: int
    done: int
    steps: int
    worlds: int
    rollbacks: int
    lost: int
    downtime_s: float
    checkpoints: int
    sleeps: int
    failed: str | None
    cost: float
    events: int
    looks: int
    sizes: tuple[int, ...] = ()
    failed_s: float | None = None

    @property
    def capacity(self) -> float:
        """All available slot-seconds."""
        return sum(self.slot_seconds.values())

    @property
    def goodput(self) -> float:
        """The useful share of the slot-seconds."""
        return self.share("useful")

    def share(self, name: str) -> float:
        """Return the share of one category. Raises :class:`~hvd_elastic_ext.core.goodput.Miscounted`."""
        return share(self.slot_seconds[name], self.capacity, name)


def simulate(
    trace: Trace,
    settings: RunSettings,
    times: Times,
    *,
    work: Work | None = None,
    seed: int = 0,
    journal: Sink | None = None,
    watch: Watch | None = None,
) -> Result:
    """Run one job. The same arguments give the same result. ``watch`` is called at each look of the driver."""
    with _quiet():
        return _Job(trace, settings, times, work or Work(), seed, journal or NoJournal(), watch).run()


class _Job:
    def __init__(
        self,
        trace: Trace,
        settings: RunSettings,
        times: Times,
        work: Work,
        seed: int,
        journal: Sink,
        watch: Watch | None = None,
    ) -> None:
        self._watch = watch
        self._trace, self._settings, self._times, self._work = trace, settings, times, work
        options = settings.options
        self._accounts = Accounts(Sim(), times, options.limits.least)
        self._cluster = cluster = Cluster(options, times, self._accounts, seed=seed, journal=journal)
        self._sim = self._accounts.sim = cluster.sim
        self._journal = cluster.new_journal()
        self._supply = None
        if options.scaling is not None:
            self._supply = Supply(first_hosts(tuple(filter(trace.plays, trace.rows)), options.limits.start))
            cluster.scales = self._asked_for_hosts
        self._there: dict[str, Row] = {}
        self._listed: dict[str, int] = {}
        self._departing: dict[str, tuple[float, float | None]] = {}
        self._recorded: dict[str, int] = {}
        self._recorded_departing: list[str] = []
        self._numbers = 0
        self._asleep: Saved | None = None
        self._restarts = self._idle_wakes = self._sleeps = self._looks = 0
        self._trained = False
        self._done_at: float | None = None
        self._failed: str | None = None
        self._failed_at: float | None = None
        self._cost = self._per_hour = 0.0
        self._rates: dict[str, float] = {}
        """Price of all slots of each host for an hour."""
        self._ends = BEGIN_S + trace.ends
        cluster.training.records = cluster.keeps_journal
        cluster.absent |= trace.slots.keys()
        if times.cold_s:
            first = (row for row in trace.rows if row.at == 0.0 and row.event == "up")
            cluster.boot_s |= {row.host: times.of(row.kind, "boot_s") + times.cold_s for row in first}
        cluster.boot_s |= trace.boots
        if work.rank_steps is not None:
            cluster.training.last_step = self._last_step

    def run(self) -> Result:
        """Run from the first row of the trace to the last."""
        cluster, accounts = self._cluster, self._accounts
        accounts.begin()
        for row in self._trace.rows:
            if self._trace.plays(row):
                self._sim.at(BEGIN_S + row.at, self._happens, row)
            if row.notice:
                self._sim.at(max(self._sim.now, BEGIN_S + row.at - row.notice), self._notified, row)
        self._sim.happen(BEGIN_S)
        self._publish()
        cluster.start_launcher()
        self._tell_prices()
        while self._sim.now < self._ends and accounts.phase != "over":
            cluster.run(self._ends, stops=self._after_look)
            self._after_session()
        for world in cluster.training.worlds:
            cluster.training.settle(world)
            if cluster.keeps_journal and world.phase == "training" and not world.fresh:
                self._journal.record("stepped", generation=world.key[1], **step_fields(world))
        accounts.close()
        self._pay()
        return self._result()

    def _after_look(self, launcher: Launcher) -> bool:
        """Note the number of missing processes; return whether the launcher has ended."""
        if self._watch is not None:
            self._watch((self._sim.now - BEGIN_S) / max(1e-9, self._ends - BEGIN_S))
        if self._accounts.worlds == 1:
            self._cluster.boot_s = dict(self._trace.boots)  # later starts find a warm cache
        job = launcher.driver.job
        missing = max(0, len(job.wanted) + len(job.spares) - len(job.roster.workers))
        ready = spares.counted(job).ready if job.spares else 0
        if (missing, ready) != (self._accounts.missing, self._accounts.spares):
            self._accounts.count()
            self._accounts.missing, self._accounts.spares = missing, ready
        return launcher.driver.over

    # --- hosts

    def _happens(self, row: Row) -> None:
        """Apply a row of the trace to the available hosts. A job that chooses its number has only some of them."""
        supply = self._supply
        if supply is None:
            self._apply_event(row)
        elif row.event == "up":
            supply.there[row.host] = row
            self._give()
        elif row.event == "price":
            supply.there[row.host] = replace(supply.there[row.host], price=row.price)
            if row.host in self._there:
                self._apply_event(row)
        else:
            if row.event != "crash":
                supply.gone(row.host)
            if row.host in self._there:
                self._apply_event(row)
            self._give()

    def _give(self) -> None:
        """Add the requested hosts. The first hosts of the job are available at once."""
        assert self._supply is not None
        for host in self._supply.more():
            wait_s = self._times.host_s if self._sim.now > BEGIN_S else 0.0
            if wait_s:
                self._sim.later(wait_s, self._arrives, host)
            else:
                self._arrives(host)

    def _arrives(self, host: str) -> None:
        assert self._supply is not None
        if host in self._supply.given and host not in self._there:
            self._apply_event(self._supply.there[host])

    def _asked_for_hosts(self, launcher: Launcher, hosts: int, leaving: Sequence[str]) -> None:
        assert self._supply is not None
        for host in self._supply.asked(hosts, leaving):
            if (row := self._there.get(host)) is not None:
                self._apply_event(replace(row, event="down"))
        self._give()
        if launcher.alive:
            launcher.driver.tell(Scaled(hosts))
            launcher.dirty = True

    def _tell_prices(self) -> None:
        launcher = self._cluster.launcher
        if self._supply is not None and launcher is not None and any(self._rates.values()):
            launcher.driver.tell(Observed({"price": dict(self._rates)}))

    def _apply_event(self, row: Row) -> None:
        """Apply an event to a host of the job, or to one that joins."""
        accounts, cluster = self._accounts, self._cluster
        accounts.count()
        self._pay()
        if row.event == "up":
            self._add_host(row)
        elif row.event == "price":
            self._costs(row.host, self._there[row.host].slots * (row.price or 0.0))
        elif row.event == "crash":
            agent = cluster.agents.get(row.host)
            if agent is not None and agent.processes:
                agent.ended(agent.processes[min(agent.processes)], 1)
        else:
            self._goes(row)

    def _add_host(self, row: Row) -> None:
        cluster = self._cluster
        cluster.absent.discard(row.host)
        if row.host in cluster.cut:
            self._ends_for_good(row.host)
        self._accounts.away.discard(row.host)
        self._departing.pop(row.host, None)  # the entry was of its earlier life
        self._there[row.host] = row
        self._accounts.slots += row.slots
        usual = self._work.prices.get(row.kind, self._work.price)
        self._costs(row.host, row.slots * (usual if row.price is None else row.price))
        cluster.kinds[row.host] = row.kind
        if self._sim.now > BEGIN_S:
            self._sim.later(self._times.publish_s, self._list, row)
        else:
            self._listed[row.host] = row.slots

    def _list(self, row: Row) -> None:
        if self._there.get(row.host) is row and row.host not in self._departing:
            self._listed[row.host] = row.slots
            self._publish()

    def _goes(self, row: Row) -> None:
        cluster, accounts = self._cluster, self._accounts
        was = self._there.pop(row.host)
        self._costs(row.host, 0.0)
        agent = cluster.agents.get(row.host)
        if row.event == "lost":
            accounts.vanished(row.host, [] if agent is None else list(agent.processes.values()))
            cluster.training.vanished.add(row.host)
            cluster.cut_off(row.host)
            self._sim.later(CUT_S, self._ends_for_good, row.host)
        elif agent is not None:
            cluster.agent_dies(agent)
        cluster.absent.add(row.host)
        accounts.slots -= was.slots
        self._sim.later(self._times.publish_s, self._unlist, row.host)

    def _ends_for_good(self, host: str) -> None:
        if (agent := self._cluster.agents.get(host)) is not None and host in self._cluster.cut:
            self._cluster.agent_dies(agent)
        self._cluster.cut.discard(host)
        self._cluster.training.vanished.discard(host)

    def _unlist(self, host: str) -> None:
        if host not in self._there:
            self._listed.pop(host, None)
            self._departing.pop(host, None)
            self._publish()

    def _notified(self, row: Row) -> None:
        if row.host in self._there:
            self._accounts.count()
            self._listed.pop(row.host, None)
            self._departing[row.host] = (self._sim.now, BEGIN_S + row.at)
            self._sim.later(self._times.publish_s, self._publish)

    def _publish(self) -> None:
        self._accounts.count()
        self._accounts.published = sum(self._listed.values())
        if self._cluster.keeps_journal:
            self._record_hosts()
        leaves = {
            host: None if by is None else max(0.0, by - self._sim.now) for host, (_, by) in self._departing.items()
        }
        self._cluster.publish(dict(self._listed), leaves)
        if self._asleep is not None:
            self._may_wake()

    def _record_hosts(self) -> None:
        before, now = self._recorded, dict(self._listed)
        departing = sorted(self._departing)
        if (now, departing) == (before, self._recorded_departing):
            return
        self._numbers += 1
        self._recorded, self._recorded_departing = now, departing
        both = now.keys() & before.keys()
        self._journal.record(
            "published",
            generation=0 if self._cluster.launcher is None else self._cluster.launcher.driver.job.generation,
            number=self._numbers,
            source="trace",
            hosts=now,
            departing=departing,
            added=[host for host in now if host not in before],
            removed=[host for host in before if host not in now],
            grown=[host for host in both if now[host] > before[host]],
            shrunk=[host for host in both if now[host] < before[host]],
        )

    # --- sessions

    def _after_session(self) -> None:
        """Handle the end of the launcher's session: the job is done, sleeps, or has failed."""
        launcher = self._cluster.launcher
        if launcher is None or not launcher.driver.over:
            return
        accounts, outcome = self._accounts, launcher.driver.outcome
        accounts.count()
        self._looks += launcher.looks
        launcher.alive = False
        time = self._sim.time
        saved = saved_of(launcher.driver.job, incarnation=launcher.incarnation, ports={}, wall=time.wall(), run=None)
        if outcome is None:
            self._done_at, accounts.phase = self._sim.now, "over"
            return
        begun = launcher.driver.job.world.begun
        self._expects = launcher.driver.job.checkpoints.newest[0] or self._expects
        if isinstance(outcome, Asleep):
            self._falls_asleep(launcher, saved, outcome, begun=begun)
            return
        pause = pause_before_restart(
            outcome, self._restarts, policy=self._settings.restart_policy, limit=self._settings.backoff_limit
        )
        if pause is None:
            self._fails(outcome)
            return
        self._restarts, self._trained = self._restarts + 1, self._trained or begun
        self._cluster.launcher = None
        self._sim.later(pause, self._resume, saved)

    _expects: str | None = None

    def _fails(self, outcome: JobFailed) -> None:
        self._failed, self._failed_at, self._accounts.phase = outcome.line, self._sim.now, "over"
        if self._sim.now < self._ends:  # its hosts stay, without any use
            self._cluster.launcher = None
            for agent in list(self._cluster.agents.values()):
                self._cluster.agent_dies(agent)
            self._cluster.run(self._ends)

    def _falls_asleep(self, launcher: Launcher, saved: Saved, outcome: Asleep, *, begun: bool) -> None:
        self._idle_wakes = self._idle_wakes + 1 if self._trained and not begun and self._sleeps else 0
        self._trained, self._asleep = True, saved
        self._accounts.phase, self._accounts.slept = "asleep", True
        self._sleeps += 1
        self._slept_at, self._enough_since = self._sim.now, None
        self._ledger = launcher.driver.job.faults.ledger
        self._known = frozenset(self._listed)
        self._journal.record("slept", generation=saved.generation, reason=str(outcome))
        self._cluster.launcher = None
        self._may_wake()

    _slept_at = 0.0
    _enough_since: float | None = None
    _known: frozenset[str] = frozenset()

    def _may_wake(self) -> None:
        """Whether a sleeping job wakes: the rule of ``launcher/sleep/sleep.py``, in virtual time."""
        if self._asleep is None:
            return
        now = self._sim.now
        hosts = HostSet.of(self._listed)
        here = frozenset(hosts.names)
        self._known &= here
        usual = self._cluster.options.limits
        idle = self._idle_wakes if here == self._known else 0
        limits = replace(usual, settle_s=sleep_policy.settle_s(usual.settle_s, idle))
        slots = sleep_policy.slots_there(now, hosts, self._ledger)
        enough = bool(limits.size(slots, begun=True))
        self._enough_since = (self._enough_since or now) if enough else None
        facts = SleepFacts(self._slept_at, slots, self._enough_since, None, self._ledger.next_release(now))
        decision = sleep_policy.decide(now, facts, limits, self._settings.max_wait_s)
        if decision.act is SleepAction.END:
            self._asleep = None
            self._fails(JobFailed(decision.reason))
        elif decision.act is SleepAction.WAKE:
            saved, self._asleep = self._asleep, None
            self._journal.record(
                "woke", generation=saved.generation, reason=decision.reason, slept_s=round(now - self._slept_at, 3)
            )
            self._resume(saved)
        elif decision.again_at is not None:
            self._sim.at(decision.again_at + 1e-6, self._may_wake)

    def _resume(self, saved: Saved) -> None:
        self._accounts.count()
        self._accounts.phase = "running"
        self._cluster.options = self._settings.options.woken_up()
        self._cluster.next_session(saved, expects=self._expects)
        self._tell_prices()

    def _last_step(self, world: World) -> int | None:
        wanted = self._work.rank_steps
        assert wanted is not None  # otherwise it is not called
        return self._accounts.batch + max(1, math.ceil((wanted - self._accounts.kept) / max(1, len(world.members))))

    # --- what comes out

    _paid_at = BEGIN_S

    def _pay(self) -> None:
        """Add the cost of the hosts until now."""
        hours, self._paid_at = (self._sim.now - self._paid_at) / 3600.0, self._sim.now
        self._cost += hours * self._per_hour

    def _costs(self, host: str, per_hour: float) -> None:
        """Set the price of a host from now on."""
        self._per_hour += per_hour - self._rates.get(host, 0.0)
        self._rates[host] = per_hour
        self._tell_prices()

    def _result(self) -> Result:
        accounts, launcher = self._accounts, self._cluster.launcher
        return Result(
            {name: accounts.slot_seconds[name] for name in CATEGORIES},
            self._sim.now - BEGIN_S,
            None if self._done_at is None else self._done_at - BEGIN_S,
            accounts.kept,
            accounts.rank_steps,
            accounts.batch,
            accounts.worlds,
            accounts.rollbacks,
            accounts.lost,
            accounts.downtime_s,
            accounts.checkpoints,
            self._sleeps,
            self._failed,
            self._cost,
            self._sim.happened,
            self._looks + (launcher.looks if launcher is not None else 0),
            () if self._supply is None else tuple(self._supply.sizes),
            None if self._failed_at is None else self._failed_at - BEGIN_S,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable the driver's log, and garbage collection, because there are many objects and no garbage."""
    before, collects = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        logging.disable(before)
        if collects:
            gc.enable()
