"""The job that the agent has joined: which launcher it serves, and for how long it goes on without one.

An agent that joins a job becomes the only agent of its host for that job (``claim.py``). It obeys the launcher with the
highest incarnation that it has met, over a connection (``channel.py``). When that is lost, training goes on until it
needs a launcher; if none has come within the grace, the agent ends everything. A later launcher is either one at the
same address, or one that has started a second agent here, which hands over its order.

The launcher's welcome has the options of the job. What they switch on is loaded only then: the watch of a cloud,
reports of the host's load, figures for Prometheus.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hvd_elastic_ext.agent import host_facts
from hvd_elastic_ext.agent.channel import Channel
from hvd_elastic_ext.agent.claim import Claim, HandoverServer, claim_or_hand_over
from hvd_elastic_ext.agent.descriptors import EventLoop, warn
from hvd_elastic_ext.agent.helper import Helpers
from hvd_elastic_ext.agent.notices.host_notices import HostNotices
from hvd_elastic_ext.agent.orders import End, Join, Options, OrderError, Pace, completed, read_welcome
from hvd_elastic_ext.agent.resolver import Found, Lookup
from hvd_elastic_ext.agent.slots.slot import Slot
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.wire import MAX_FIRST, WireError, key_from_hex

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.load import LoadReports
    from hvd_elastic_ext.agent.metrics import MetricsPort


class JobServices(EventLoop, Protocol):
    """What a job uses of the agent; :class:`hvd_elastic_ext.agent.loop.Agent` describes it."""

    helpers: Helpers
    stdin: int | None

    @property
    def slots(self) -> Mapping[int, Slot]: ...
    @property
    def heartbeats(self) -> int: ...
    @property
    def ending(self) -> bool: ...
    def order(self, entry: dict[str, Any]) -> None: ...
    def resume(self) -> None: ...
    def end_all(self, reason: str, grace_s: float | None = None) -> None: ...


def join(agent: JobServices, order: Join | End) -> JoinedJob:
    """Become the agent of the host in the job. If there is one, hand ``order`` to it, and exit.

    Raises ``OrderError`` for an invalid key.
    """
    try:
        key = key_from_hex(order.key)
    except WireError as error:
        raise OrderError(str(error)) from None
    claim = claim_or_hand_over(order, key)
    if isinstance(order, End):
        sys.exit(0)  # there is no agent that could end
    with contextlib.suppress(PermissionError):  # it is the leader of a group already
        os.setsid()  # only the launcher gets the signals of a terminal
    return JoinedJob(agent, order, key, claim=claim)


class JoinedJob:
    """See the module's docstring."""

    def __init__(self, agent: JobServices, order: Join, key: bytes, *, claim: Claim) -> None:
        self._agent = agent
        self._order = order
        """The newest order to join."""
        self._key = key
        self._claim = claim
        self._id = os.urandom(8).hex()
        self._incarnation = order.incarnation
        """That of the newest launcher. Older ones are refused."""
        self._grace_s = order.orphan_grace_s
        self.pace = Pace()
        self._options = Options()
        """Those of the newest launcher that has sent its welcome."""
        self._addresses: Found | None = None
        """Those of this host's own name; None while it is looked up."""
        self._facts: dict[str, Any] | None = None
        """What a hello says of the host, once it is known."""
        self._lost_at: float | None = agent.now()
        """Since when there is no launcher; None while there is one."""
        self._signal: tuple[str, float] | None = None
        """The signal that the agent has received, and the time until which it waits for the launcher's reaction."""
        self._warnings: set[str] = set()
        """Problems that have been written since the last launcher was connected."""
        self.channel = Channel(agent, self, key)
        self.notices = HostNotices(
            agent, claim.notice_file, connected=lambda: self.connected, tell=self.channel.put, warn=self.warn
        )
        self._load: LoadReports | None = None
        self._metrics: MetricsPort | None = None
        self.channel.connect_to(order.address)
        self.channel.tick()
        self._lookup = Lookup(agent, os.uname().nodename, then=self._looked_up)
        self._handover = None
        if claim.listener is not None:
            self._handover = HandoverServer(agent, claim.listener, key, apply=self._apply_newcomer)

    # --- what the agent needs ----------------------------------------------------------------------

    @property
    def env(self) -> dict[str, str]:
        """The environment that every process of the job gets."""
        return self._order.env

    def secret(self, transfer: str) -> str:
        """Return the secret of transfers, which both ends prove to have. The job's key itself stays in the agents."""
        return hmac.digest(self._key, b"transfer" + transfer.encode(), "sha256").hex()

    @property
    def names(self) -> tuple[str, str]:
        """The names of the job and of this host."""
        return self._order.job, self._order.host

    @property
    def connected(self) -> bool:
        """Whether there is a connection over which the launcher has sent its welcome."""
        return self.channel.open

    def tell_signal(self, name: str, grace_s: float) -> None:
        """Report a signal to end, and ``grace_s``, the seconds left; without a launcher, in the next hello."""
        self._signal = (name, self._agent.now() + grace_s)
        if self.connected:
            self.channel.put("notice", reason=name, grace_s=grace_s)

    def due(self) -> float | None:
        """The time, by the agent's clock, at which ``tick`` is needed next."""
        moments = [self.channel.due(), self.notices.due()]
        moments += [part.due() for part in (self._handover, self._metrics) if part is not None]
        if self._addresses is None:
            moments.append(self._lookup.due())
        if self._load is not None and self.connected:
            moments.append(self._load.due())
        if self._lost_at is not None:
            end = self._lost_at + self._grace_s
            moments.append(end if end > self._agent.now() else None)
        return min((moment for moment in moments if moment is not None), default=None)

    def tick(self) -> None:
        """Do what is due. After the grace without a launcher, end all slots, unless training needs none."""
        if self._addresses is None:
            self._lookup.tick()
        self.notices.tick()
        if self._metrics is not None:
            self._metrics.tick()
        if self._load is not None and self.connected:
            self._load.tick()
        self.channel.tick()
        if self._handover is not None:
            self._handover.tick()
        if self._lost_at is not None and self._agent.now() >= self._lost_at + self._grace_s:
            # Training continues without a launcher until its next failure.
            trains = any(slot.trains for slot in self._agent.slots.values())
            if (self.channel.needed or not trains) and not self._agent.ending:
                self._agent.end_all(f"there has been no launcher for {self._grace_s:g} s")

    def close(self) -> None:
        """Wait a moment for the last events to arrive, disconnect and release the claim on the host."""
        self.notices.close()
        for part in (self._handover, self._metrics):
            if part is not None:
                part.close()
        self.channel.close()
        if self._addresses is None:
            self._lookup.close()
        self._claim.release()

    def hang_up_others(self) -> None:
        """Last of all, close the connections of other agents of this host: they wait for the end of this one."""
        if self._handover is not None:
            self._handover.hang_up_all()

    # --- what the channel needs --------------------------------------------------------------------

    def hello(self, own_address: str) -> dict[str, Any] | None:
        """Return the first message: the agent's identity, and all that a new launcher needs. None while addresses are
        unknown."""
        if self._addresses is None:
            return None
        if self._facts is None:
            addresses, problem = self._addresses
            self._facts = host_facts.gather(own_address, resolved=addresses, problem=problem)
            self._facts |= host_facts.of_code(self._order.code)
            self._facts |= {"stdin": True} if self._agent.stdin is not None else {}
        slots = {str(number): slot.status() for number, slot in self._agent.slots.items() if slot.in_use}
        hello = {
            "event": "hello",
            "job": self._order.job,
            "host": self._order.host,
            "incarnation": self._incarnation,
            "agent": self._id,
            "pid": os.getpid(),
            "facts": self._facts,
        }
        if self._signal is not None:
            name, end = self._signal
            hello["notice"] = {"reason": name, "grace_s": max(0.0, end - self._agent.now())}
        if (going := self.notices.going) is not None:
            hello["going"] = going
        return {**hello, "seats": _fitting(slots)}

    def welcome(self, message: dict[str, Any]) -> str | None:
        """Adopt the launcher's incarnation, pace and options. Refuse a launcher that is older than an earlier one."""
        try:
            welcome = read_welcome(message)
        except OrderError as error:
            return f"the launcher sent no valid welcome: {error}"
        if welcome.incarnation < self._incarnation:
            return f"it is launcher {welcome.incarnation} of the job, and launcher {self._incarnation} has taken over"
        self._obey(welcome.incarnation)
        self.pace = welcome.pace
        self._take_options(welcome.options)
        return None

    def _obey(self, incarnation: int) -> None:
        if incarnation > self._incarnation:
            self._agent.helpers.kill()  # the launcher that waited for it is gone
        self._incarnation = incarnation

    def _take_options(self, options: Options) -> None:
        before, self._options = self._options, options
        if options.orphan_grace_s is not None:
            self._grace_s = options.orphan_grace_s
        self.notices.take(options)
        if options.observe != before.observe:
            self._report_load(options.observe)
        if options.metrics != before.metrics:
            self._open_metrics(options.metrics)

    def _report_load(self, wanted: bool) -> None:
        self._load = None
        if wanted:
            from hvd_elastic_ext.agent.load import LoadReports

            self._load = LoadReports(self._agent, tell=self.channel.put)

    def _open_metrics(self, address: str | None) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if address is not None:
            from hvd_elastic_ext.agent.metrics import open_port

            self._metrics = open_port(self._agent, self, address)

    def opened(self) -> None:
        """Report notices and open questions to the launcher."""
        self._lost_at = None
        self._warnings.clear()
        # The hello was made before the welcome, and queued events may be older still.
        self.notices.tell_again()
        for slot in self._agent.slots.values():
            if slot.worker_link is not None:
                slot.worker_link.ask_again()

    def ordered(self, message: dict[str, Any]) -> None:
        """Execute an order, or each order in an ``all``. The join order's values complete a start order."""
        together = message.get("orders") if message.get("do") == "all" else None
        for entry in together if isinstance(together, list) else [message]:
            if isinstance(entry, dict):
                self._agent.order(completed(entry, self._order))

    def warn(self, problem: str) -> None:
        """Write a problem to standard error: each one only once, until a launcher is connected again."""
        if problem not in self._warnings:
            self._warnings.add(problem)
            warn(problem)

    def lost(self, reason: str) -> None:
        """Warn that the connection is lost. The time without a launcher begins at the first of several failures."""
        self.warn(f"no launcher at {self._order.address[0]} port {self._order.address[1]}: {reason}")
        self._orphaned()

    def _orphaned(self) -> None:
        if self._lost_at is None:
            self._lost_at = self._agent.now()
            worker_links = [slot.worker_link for slot in self._agent.slots.values()]
            self.channel.needed = any(link is not None and link.asking for link in worker_links)

    def _looked_up(self, addresses: Found) -> None:
        self._addresses = addresses
        self.channel.send_hello()

    # --- later agents ------------------------------------------------------------------------------

    def _apply_newcomer(self, order: Join | End) -> str:
        if (order.job, order.host) != (self._order.job, self._order.host):
            raise OrderError("this agent belongs to another host or job")
        if isinstance(order, End):
            self._agent.end_all("told to end everything", order.grace_s)
            return "ending"
        if self._agent.ending:
            return "ending"
        if order.incarnation < self._incarnation:
            raise OrderError(
                f"launcher {order.incarnation} of the job is not obeyed: {self._incarnation} has taken over"
            )
        self._obey(order.incarnation)
        self._order, self._grace_s = order, order.orphan_grace_s
        self._facts = None
        self._agent.resume()
        self.channel.connect_to(order.address)
        self._lost_at = None  # the new launcher gets a full grace in which the agent can reach it
        self._orphaned()
        return "adopted"


def _fitting(slots: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """Return the slots' state, shortened such that a first message can contain it with the facts. The held commits are
    always included."""
    fitting = slots
    for left_out in ({"beat"}, {"beat", "code", "parked", "generation", "agreed", "done", "note"}):
        if len(to_text(fitting)) < MAX_FIRST - (8 << 10):
            break
        fitting = {
            number: {key: value for key, value in status.items() if key not in left_out}
            for number, status in slots.items()
        }
    return fitting
