"""Who is blamed when a process or a host is gone, and when it has been too much."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger, Strike, Subject
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Worker

log = logging.getLogger(__name__)

BUDGET_WINDOW_S: Final = 3600.0
"""``--failure-budget`` is so many faults within this time."""


class Faults:
    """Keeps the ledger. ``changed`` is called when it has become another one."""

    def __init__(self, station: Station, ledger: HealthLedger, *, changed: Callable[[], None]) -> None:
        self.ledger = ledger
        self._station = station
        self._changed = changed
        self.first: str | None = None
        """The first process that failed, and how."""
        self._counted: list[tuple[float, str]] = []
        self._deserted: list[float] = []
        """When the last process of a world left of its own accord."""
        self.has_trained: Callable[[], bool] = lambda: True
        """Whether some process of the job has come as far as training."""
        self._seen: dict[str, tuple[str, int]] = {}
        """Of each error the host and the step where it was seen last."""

    def usable(self, hosts: HostSet, *, forgive: bool) -> list[tuple[str, tuple[int, ...]]]:
        """Each host's slots that may work.

        If nobody is left to work, whoever has the newest commit is forgiven first.
        """
        station, now = self._station, self._station.now()
        usable = [(host.name, self.ledger.usable_slots(now, host)) for host in hosts]
        works = any(worker.killed is None for worker in station.roster.workers.values())
        if not hosts or not forgive or works or any(slots for _, slots in usable):
            return usable
        candidates = [(host, station.roster.commits.of_host(host.name)) for host in hosts]
        self.ledger, forgiven, reason = self.ledger.forgive_first(now, candidates)
        if forgiven is None:
            return usable
        log.warning("%s: forgiven", reason)
        self._changed()
        return [(host.name, self.ledger.usable_slots(now, host)) for host in hosts]

    def strike(self, cause: Cause, host: Host, slot: int | None = None, *, detail: str, tried_s: float = 0.0) -> None:
        """Hold something against a slot or a host, unless nobody is to blame.

        ``tried_s``: how long it had been tried before, without any work done.
        """
        now = self._station.now()
        strike = Strike.of(cause, host, slot, at=now, unproven_s=tried_s)
        after = self.ledger if strike is None else self.ledger.struck(now, strike, self._station.rules.cooldown_s)
        if strike is None or after is self.ledger:
            return
        self.ledger = after
        until = after.blocked(now, host, slot).until
        self._station.record(
            "struck",
            subject=str(strike.subject),
            cause=str(cause),
            cooldown_s=None if until is None else round(until - now, 3),
            until=until,
            host=host.name,
            reason=detail,
        )
        self._changed()

    def drain(self, host: Host, slot: int, *, reason: str) -> None:
        """Give a slot no work for as long as the longest cooldown. Nobody is to blame.

        It is for the pod's whole life, whatever container runs in it: the device stays the same.
        """
        until = self._station.now() + self._station.rules.cooldown_s[1]
        self.ledger = self.ledger.block(Subject("slot", host.name, host.uid, slot), until, reason, drained=True)
        self._changed()

    def failed(self, worker: Worker, cause: Cause, how: str, *, members: tuple[Life, ...]) -> JobFailed | None:
        """Note that a process has failed; why that ends the job, if it does.

        While others train on, one host alone neither ends the job nor uses up
        ``--failure-budget``: its cooldowns are answer enough. What newcomers do
        before they are in a world costs nobody anything, and does not count at all.
        """
        self.first = self.first or f"{worker.seat} {how}"
        well = self._others_are_well(worker, members)
        newcomer = well and worker.life not in members
        if worker.failure is not None and not newcomer and self._users_own(worker, members, well=well):
            _, error, traceback = worker.failure
            how_often = " again and again" if well else ""
            return JobFailed(f"the training script fails{how_often}: {error}\n{traceback}".rstrip())
        tried_s = worker.tried_s(self._station.now())
        self.strike(cause, worker.host, worker.seat.slot, detail=how, tried_s=tried_s)
        if newcomer or not self._count(worker.seat.host, well=well):
            return None
        what = f": {worker.failure[1]}" if worker.failure else ""
        count = f"{len(self._counted)} processes failed within an hour, more than --failure-budget allows"
        return JobFailed(f"{count}; the last one was {worker.seat}: {how}{what}")

    def left(self, worker: Worker, how: str, *, members: tuple[Life, ...]) -> JobFailed | None:
        """Note that a process has left of its own accord; why that ends the job, if it does.

        Leaving is everybody's right. That nobody is left, time and again, is no way to train.
        """
        if worker.life not in members or self._station.roster.present(members):
            return None
        now = self._station.now()
        self._deserted = [at for at in self._deserted if now - at < BUDGET_WINDOW_S] + [now]
        if len(self._deserted) <= self._station.rules.failure_budget:
            return None
        times = f"all processes have left {len(self._deserted)} times within an hour, more than --failure-budget allows"
        return JobFailed(
            f"{times}; the last one was {worker.seat}: {how}. Training is done when the training function returns"
        )

    def _count(self, host: str, *, well: bool) -> bool:
        """Count a fault, and say whether that makes too many."""
        now, budget = self._station.now(), self._station.rules.failure_budget
        self._counted = [(at, name) for at, name in self._counted if now - at < BUDGET_WINDOW_S]
        its_share = budget // 2 + 1
        if well and sum(name == host for _, name in self._counted) >= its_share:
            return False
        self._counted.append((now, host))
        return len(self._counted) > budget

    def _others_are_well(self, worker: Worker, members: tuple[Life, ...]) -> bool:
        """Whether some member of the world lives that has not said that it fails in the same way."""
        digest = worker.failure and worker.failure[0]
        others = [each for each in self._station.roster.present(members) if each is not worker]
        return any(each.killed is None and not (each.failure and each.failure[0] == digest) for each in others)

    def _users_own(self, worker: Worker, members: tuple[Life, ...], *, well: bool) -> bool:
        """Whether the same error has ended every member of the world, or has come back without a step in between.

        As long as others are well it has to be back somewhere else, unless nobody has ever come as far as training.
        """
        assert worker.failure is not None
        digest, host = worker.failure[0], worker.seat.host
        seen, self._seen[digest] = self._seen.get(digest), (host, worker.step)
        early = worker.life in members and not self.has_trained()
        if not well and (len(members) > 1 or early):
            return True
        return seen is not None and worker.step <= seen[1] and (early or not (well and seen[0] == host))
