"""What all parts of the driver share: facts, rules, clock, and the few ways to speak."""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.rank_info import Place
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.rules.health.causes import Cause, announced
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from hvd_elastic_ext.launcher.rules.membership.rendezvous import NO_ROOM, TOO_LARGE, Answer, Life, Rendezvous, Seat
from hvd_elastic_ext.launcher.state.roster import Roster, Worker

log = logging.getLogger(__name__)


class Hands(Protocol):
    """What the driver can do."""

    def start_agent(self, host: Host) -> None:
        """Start an agent, or have a living one come back. Its news follow, or :meth:`Driver.launch_ended`."""

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        """Give a host's agent an order; False if it is not connected."""

    def stop_launch(self, host: str) -> None:
        """Give up on the start of an agent."""

    def hang_up(self, host: str, reason: str) -> None:
        """Close the connection to a host's agent. If that lives, it comes again and says what it has."""

    def end_agent(self, host: Host) -> None:
        """End the agent that may live on a host, and all that it runs, without a connection to it.

        :meth:`Driver.agent_ended` follows.
        """

    @property
    def environment(self) -> Mapping[str, str]:
        """What agents give to every process. Nothing of it goes into an order: orders can be read on their way."""

    def start_order(self, seat: Seat, place: Place) -> dict[str, Any]:
        """What is a seat's own of how its process is to be started.

        ``place`` is what that shows to user code until it has one.
        """

    def peer_address(self, host: str) -> str:
        """The address at which other agents reach a host's agent."""

    def go_env(self, worker: Worker) -> dict[str, str]:
        """What is added to a process's environment when it goes live."""

    def unfit(self, host: Host, facts: Mapping[str, Any]) -> str | None:
        """Why a host cannot be used, and what to do about it; None if it can."""


class Rules(Protocol):
    """What the driver reads of the settings. Times in seconds."""

    @property
    def limits(self) -> Limits: ...
    @property
    def cooldown_s(self) -> tuple[float, float]: ...
    @property
    def heartbeat_timeout_s(self) -> float: ...
    @property
    def standby_timeout_s(self) -> float: ...
    @property
    def orphan_grace_s(self) -> float: ...
    @property
    def commit_wait_s(self) -> float:
        """How long a holder of the newest commit that cannot be reached is waited for."""

    @property
    def elastic_timeout_s(self) -> float: ...
    @property
    def reset_limit(self) -> int | None: ...
    @property
    def failure_budget(self) -> int: ...
    @property
    def restart_from_scratch(self) -> bool:
        """Whether a job of which nothing is left begins its training anew."""

    @property
    def below_min(self) -> str:
        """``wait``, ``sleep`` or ``fail``."""

    @property
    def sleep_after_s(self) -> float | None:
        """How long it has to be too few before the job goes to sleep; None if it never does."""

    @property
    def woken(self) -> bool:
        """The job has slept, or failed, after it had begun: it goes on, and does not begin."""

    @property
    def progress_timeout_s(self) -> float | None: ...
    @property
    def restart_stalled(self) -> bool: ...
    @property
    def drain_stragglers(self) -> bool: ...
    @property
    def engine(self) -> str:
        """``horovod``, ``mpirun`` or ``torchrun``."""

    @property
    def durability(self) -> Durability | None:
        """How checkpoints are made; None if they are not."""

    @property
    def commit_every(self) -> Cadence | None:
        """Every how many calls of ``commit()`` one is made; None is all of them."""


@dataclass
class Station:
    """See the module's docstring.

    ``departing``: hosts that are about to go by their list, and when (mono; infinite if unknown). ``announced``: why.
    """

    rules: Rules
    hands: Hands
    journal: Journal
    clock: Clock
    generation: int = 0
    roster: Roster = field(default_factory=Roster)
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    departing: Mapping[str, float] = field(default_factory=dict)
    announced: Mapping[str, Cause] = field(default_factory=dict)
    transferring: frozenset[str] = frozenset()
    """Hosts between which a commit is sent: their agents do one errand at a time."""
    _excessive: set[Life] = field(default_factory=set)
    """Who wanted too much kept at the rendezvous, which was said."""
    errands: int = field(default_factory=lambda: secrets.randbelow(1 << 48))
    """Number of the last errand that an agent was sent on. An answer that another launcher waited for has none of
    them."""

    def new_errand(self) -> int:
        """A number for what agents are to see to beside training."""
        self.errands += 1
        return self.errands

    @property
    def leaves_by(self) -> Mapping[str, float]:
        """Hosts that are about to go, by whatever word, and when (mono)."""
        told = self.roster.going()
        both = {host: min(by, told.get(host, by)) for host, by in self.departing.items()}
        return {**told, **both}

    def going(self, host: str) -> Cause | None:
        """Why a host is about to go; None if it is not."""
        if host in self.announced or host not in self.leaves_by:
            return self.announced.get(host)
        return announced(self.roster.agents[host].going or "")

    def now(self) -> float:
        return self.clock.mono()

    def record(self, event: str, **fields: Any) -> None:
        self.journal.record(event, generation=self.generation, **fields)

    def order(self, worker: Worker, do: str, **more: Any) -> bool:
        """Give an order about a process to its agent."""
        return self.hands.send(worker.seat.host, {"do": do, "slot": worker.seat.slot, **more})

    def tell(self, worker: Worker, what: str, **more: Any) -> None:
        """Say something to a process."""
        self.tell_all([worker], what, **more)

    def tell_all(self, workers: Iterable[Worker], what: str, **more: Any) -> None:
        """Say the same to many processes, in one order a host: there may be thousands."""
        by_host: dict[str, dict[str, int]] = {}
        for worker in workers:
            (host, slot), number = worker.life
            by_host.setdefault(host, {})[str(slot)] = number
        message = {"tell": what, **more}
        for host, to in by_host.items():
            self.hands.send(host, {"do": "tell", "to": to, "message": message})

    def answer(self, answers: Iterable[Answer]) -> None:
        """Answer what processes have asked at their doors."""
        for life, number, status, body in answers:
            if status in (TOO_LARGE, NO_ROOM) and life not in self._excessive:
                self._excessive.add(life)
                log.warning("%s wants more kept at the rendezvous than Horovod ever does: refused", life.seat)
            text = base64.b64encode(body).decode("ascii")
            order = {"do": "answer", "slot": life.seat.slot, "id": number, "status": status, "body": text}
            self.hands.send(life.seat.host, order)
