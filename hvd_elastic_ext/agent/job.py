"""The job that the agent has joined: its launcher, its notices, and its claim to be the only agent of the host."""

from __future__ import annotations

import binascii
import contextlib
import hmac
import os
import time
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.agent import claim as host_claim
from hvd_elastic_ext.agent import host_facts
from hvd_elastic_ext.agent.channel import Channel
from hvd_elastic_ext.agent.claim import HandoverServer
from hvd_elastic_ext.agent.descriptors import warn
from hvd_elastic_ext.agent.loop import Agent, AgentExit
from hvd_elastic_ext.agent.notices.files import LOOK_S, Notice, NoticeFiles, soonest_of
from hvd_elastic_ext.agent.orders import End, Join, Options, OrderError, Pace, completed, read_welcome
from hvd_elastic_ext.agent.resolver import Found, Lookup
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.slot_protocol import NOTICE_FILE
from hvd_elastic_ext.core.messages.wire import MAX_FIRST, WireError, key_from_hex

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.load import Gpus, Usage
    from hvd_elastic_ext.agent.metrics import Figures
    from hvd_elastic_ext.agent.metrics_port import Answer, MetricsPort
    from hvd_elastic_ext.agent.notices.watch import CloudWatch

TRANSIENT: Final = ("asked", "unasked", "usage")
"""Events that are not kept for a new launcher: open questions are reported again."""
FAILURES: Final = ("exited", "not_started", "asked")
"""Events that show that training needs a launcher."""
METADATA_URL: Final = "HVD_ELASTIC_METADATA_URL"
"""Variable with the URL of the cloud's metadata service, if the job names none."""
REFUSED: Final = 125
USAGE_S: Final = 10.0
"""Seconds between two reports of the host's load."""
TIMEOUT_S: Final = 30.0
"""Seconds that an agent may take to end, beyond its grace."""


def join(agent: Agent, order: Join | End) -> JoinedJob:
    """Become the agent of the host in the job. If there is one, hand ``order`` to it and raise ``AgentExit``.

    Raises ``OrderError`` for an invalid key.
    """
    try:
        key = key_from_hex(order.key)
    except WireError as error:
        raise OrderError(str(error)) from None
    claim = _claim(order, key)
    if isinstance(order, End):
        raise AgentExit(0)
    with contextlib.suppress(PermissionError):  # it is the leader of a group already
        os.setsid()  # only the launcher gets the signals of a terminal
    return JoinedJob(agent, order, key, claim=claim)


def _claim(order: Join | End, key: bytes) -> host_claim.Claim:
    grace_s = order.grace_s if isinstance(order, End) else TIMEOUT_S
    while True:
        try:
            claim = host_claim.claim(order.job, order.host, key, found=isinstance(order, Join))
        except OSError as error:
            if isinstance(order, End):
                _leave(f"cannot look for the agent of this host: {error}")
            warn(f"no other launcher will be able to adopt this agent: {error}")
            return host_claim.Claim()
        if claim.existing is None:
            if claim.problem:
                warn(f"{claim.problem}; another folder is used")
            return claim
        try:
            answer = host_claim.hand_over(claim.existing, _bare(order), key=key, wait_s=grace_s + TIMEOUT_S)
        except host_claim.Refused as refusal:
            _leave(f"the agent of this host refuses: {refusal}")
        except ConnectionError:
            continue
        except OSError as error:
            _leave(f"the agent of this host does not answer: {error}")
        if answer == "adopted":
            with contextlib.suppress(OSError):
                os.write(1, b"adopted\n")
            raise AgentExit(0)


def _leave(problem: str) -> None:
    warn(problem)
    raise AgentExit(REFUSED)


def _bare(order: Join | End) -> dict[str, Any]:
    """The order as in its line, without the key."""
    entry = order._asdict()
    del entry["key"]
    if isinstance(order, End):
        return {"do": "end", **entry}
    if not entry["argv"]:
        del entry["argv"]
    entry["code"] = binascii.b2a_base64(order.code, newline=False).decode() or None
    return {"do": "join", "launcher": list(entry.pop("address")), **entry}


class JoinedJob:
    """See the module's docstring. It has all methods that an :class:`Agent` calls of its job."""

    def __init__(self, agent: Agent, order: Join, key: bytes, *, claim: host_claim.Claim) -> None:
        self._agent = agent
        self._order = order
        self._key = key
        self._claim = claim
        self._id = os.urandom(8).hex()
        self._incarnation = order.incarnation
        self._grace_s = order.orphan_grace_s
        self.pace = Pace()
        self._options = Options()
        """Those of the newest launcher that has sent its welcome."""
        self._found: Found | None = None
        self._facts: dict[str, Any] | None = None
        self._lost_at: float | None = agent.now()
        self._failed = False
        self._notice: tuple[str, float] | None = None
        """The signal that the agent has received, and the time until which it waits for the launcher's reaction."""
        self._warnings: set[str] = set()
        self._notices = self._notice_files()
        self._look_at = agent.now()
        self._going: Notice | None = None
        """The notices from the notice files and from the cloud."""
        self._cloud: CloudWatch | None = None
        self._warned = False
        """Whether any of them has given a notice."""
        self._usage: Usage | None = None
        self._gpus: Gpus | None = None
        self._usage_at: float | None = None
        """When to report the host's load; None if the job does not request it."""
        self._channel = Channel(agent, self, key)
        self._channel.connect_to(order.address)
        self._channel.tick()
        self._lookup = Lookup(agent, os.uname().nodename, then=self._looked_up)
        self._handover = None
        if claim.listener is not None:
            self._handover = HandoverServer(agent, claim.listener, key, apply=self._apply_newcomer)
        self._metrics: MetricsPort | None = None
        self._figures: Figures | None = None
        self._metrics_at: str | None = None
        """The address that was tried last."""

    # --- what the agent needs ----------------------------------------------------------------------

    def put(self, event: str, **fields: object) -> None:
        """Queue an event for the launcher. Without one, heartbeats and :data:`TRANSIENT` events are dropped."""
        if not self._channel.open:
            self._failed = self._failed or event in FAILURES
            if event in TRANSIENT or event == "beats":
                return
        self._channel.put(event, **fields)

    @property
    def empty(self) -> bool:
        """Whether every event has been sent."""
        return self._channel.empty

    @property
    def full(self) -> bool:
        """Whether output should stay in its pipes, because the launcher reads too slowly."""
        return self._channel.full

    @property
    def env(self) -> dict[str, str]:
        """The environment that every process of the job gets."""
        return self._order.env

    def secret(self, transfer: str) -> str:
        """Return the secret of transfers, which both ends prove to have. The job's key itself stays in the agents."""
        return hmac.digest(self._key, b"transfer" + transfer.encode(), "sha256").hex()

    @property
    def preloads(self) -> bool:
        """Whether processes may start from an interpreter with the script's imports done."""
        return self._options.preload

    @property
    def names(self) -> tuple[str, str]:
        """The names of the job and of this host."""
        return self._order.job, self._order.host

    @property
    def connected(self) -> bool:
        """Whether there is a connection over which the launcher has sent its welcome."""
        return self._channel.open

    @property
    def left_s(self) -> float | None:
        """Seconds until the host is gone, by the notice files and the cloud; None if unknown."""
        return None if self._going is None or self._going.by is None else self._going.by - time.time()

    def notice(self, reason: str, grace_s: float) -> None:
        """Report signal ``reason`` and ``grace_s``, the seconds left; without a launcher, in the next hello."""
        self._notice = (reason, self._agent.now() + grace_s)
        if self.connected:  # else the next hello contains the notice
            self.put("notice", reason=reason, grace_s=grace_s)

    def due(self) -> float | None:
        """The time, by the agent's clock, at which ``tick`` is needed next."""
        moments = [self._channel.due(), None if self._found is not None else self._lookup.due()]
        moments += [self._usage_at]
        moments += [None if self._handover is None else self._handover.due(), self._look_at]
        moments += [None if each is None else each.due() for each in (self._cloud, self._metrics)]
        if self._lost_at is not None:
            end = self._lost_at + self._grace_s
            moments.append(end if end > self._agent.now() else None)
        return min((moment for moment in moments if moment is not None), default=None)

    def tick(self) -> None:
        """Do what is due. After the grace without a launcher, end all slots, unless training needs none."""
        if self._found is None:
            self._lookup.tick()
        if self._agent.now() >= self._look_at:
            self.look_for_notices()
        if self._cloud is not None:
            self._cloud.tick()
        if self._metrics is not None:
            self._metrics.tick()
        self._tell_usage()
        self._channel.tick()
        if self._handover is not None:
            self._handover.tick()
        if self._lost_at is not None and self._agent.now() >= self._lost_at + self._grace_s:
            # Training continues without a launcher until its next failure.
            trains = any(slot.trains for slot in self._agent.slots.values())
            if (self._failed or not trains) and not self._agent.ending:
                self._agent.end_all(f"there has been no launcher for {self._grace_s:g} s")

    def _tell_usage(self) -> None:
        """Report the host's load, if the job requests it."""
        now = self._agent.now()
        if self._usage_at is None or now < self._usage_at:
            return
        self._usage_at = now + USAGE_S
        if self._usage is None:
            from hvd_elastic_ext.agent.load import Usage

            self._usage = Usage()
        elif self._gpus is None:  # not at the first look: an unused driver starts slowly
            from hvd_elastic_ext.agent.host_facts import devices
            from hvd_elastic_ext.agent.load import Gpus

            self._gpus = Gpus(devices())
        if self.connected and (
            found := {**self._usage.look(now), **({} if self._gpus is None else self._gpus.report())}
        ):
            self.put("usage", **found)

    def look_for_notices(self) -> None:
        """Read the notices from the notice files and the cloud, and report a change."""
        self._look_at = self._agent.now() + LOOK_S
        notices = (self._notices.look(time.time()), None if self._cloud is None else self._cloud.going)
        going = soonest_of([each for each in notices if each is not None])
        if going != self._going:
            self._going, self._warned = going, True
            if self.connected:  # otherwise the next welcome triggers the report
                self._tell_notice()

    def _tell_notice(self) -> None:
        self.put("staying") if self._going is None else self.put("going", **self._notice_fields())

    def _notice_fields(self) -> dict[str, Any]:
        return {"reason": self._going.reason if self._going else "", "in_s": self.left_s}

    def _notice_files(self) -> NoticeFiles:
        own, named = self._claim.notice_file, self._options.notice_file or os.environ.get(NOTICE_FILE)
        return NoticeFiles([own] if own else [], [named] if named else [], warn=self.warn)

    def _ask_cloud(self) -> None:
        """Poll the cloud that the job names, if it names one, and no other cloud."""
        source, url = self._options.notices_from, self._options.metadata_url or os.environ.get(METADATA_URL) or None
        wanted = None if source is None else (source, url)
        if self._cloud is not None and self._cloud.looks_at != wanted:
            self._cloud.close()
            self._cloud = None
        if self._cloud is None and wanted is not None:
            from hvd_elastic_ext.agent.notices.watch import CloudWatch

            self._cloud = CloudWatch(self._agent, *wanted, listener=self)

    def _open_metrics(self) -> None:
        """Open the port for Prometheus that the job names, if any. The agent continues if that fails."""
        wanted = self._options.metrics
        if wanted == self._metrics_at:
            return
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._metrics_at = wanted
        if wanted is None:
            return
        from hvd_elastic_ext.agent.metrics_port import MetricsPort

        try:
            self._metrics = MetricsPort(self._agent, wanted, self._answer)
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None)
            reason = os.strerror(number) if number else "that is not an ADDRESS:PORT"
            warn(f"--agent-metrics {wanted}: {reason}; host {self._order.host} goes on without figures")
        else:
            if wanted.endswith(":0"):
                warn(f"host {self._order.host} answers Prometheus at port {self._metrics.port}")

    def _answer(self) -> Answer:
        if self._figures is None:
            try:
                from hvd_elastic_ext.agent.metrics import Figures
            except ImportError as error:  # a host that was installed by hand may lack it
                self.warn(f"--agent-metrics: {error}; install prometheus-client on host {self._order.host}")
                return 500, b"prometheus-client is missing\n", "text/plain"
            self._figures = Figures(self._agent, self)
        return self._figures.answer()

    # --- what the cloud's watch needs --------------------------------------------------------------

    def cloud_notice(self) -> None:
        """Combine the new notice with those of the notice files, and report what has changed."""
        self.look_for_notices()

    def cloud_advice(self, reason: str | None) -> None:
        """Report the advice ``reason`` to the launcher; None withdraws the last one."""
        self.put("advised", reason=reason)

    def cloud_problem(self, source: str, problem: str | None) -> None:
        """Report the ``problem`` why ``source`` does not answer; None if it answers again."""
        self.put("notices_unavailable", source=source, reason=problem)

    def close(self) -> None:
        """Wait a moment for the last events to arrive, disconnect and release the claim on the host."""
        for each in (self._cloud, self._handover, self._metrics):
            if each is not None:
                each.close()
        self._channel.close()
        if self._found is None:
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
        if self._found is None:
            return None
        if self._facts is None:
            self._facts = host_facts.gather(own_address, resolved=self._found.addresses, problem=self._found.problem)
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
        if self._notice is not None:
            reason, end = self._notice
            hello["notice"] = {"reason": reason, "grace_s": max(0.0, end - self._agent.now())}
        if self._going is not None:
            hello["going"] = self._notice_fields()
        return {**hello, "seats": _fitting(slots)}

    def welcome(self, message: dict[str, Any]) -> str | None:
        """Adopt the launcher's incarnation, pace and options. Refuse a launcher that is older than an earlier one."""
        try:
            welcome = read_welcome(message)
        except OrderError as error:
            return f"the launcher sent no valid welcome: {error}"
        if welcome.incarnation < self._incarnation:
            return f"it is launcher {welcome.incarnation} of the job, and launcher {self._incarnation} has followed it"
        if welcome.incarnation > self._incarnation:
            self._agent.kill_helper()  # the launcher that waited for it is gone
        self._incarnation = welcome.incarnation
        self.pace = welcome.pace
        self._take_options(welcome.options)
        return None

    def _take_options(self, options: Options) -> None:
        before, self._options = self._options, options
        if options.orphan_grace_s is not None:
            self._grace_s = options.orphan_grace_s
        if options.notice_file != before.notice_file:
            self._notices = self._notice_files()
        if options.observe != before.observe:
            self._usage_at = self._agent.now() if options.observe else None
        self._ask_cloud()
        self._open_metrics()

    def opened(self) -> None:
        """Report notices and open questions to the launcher; earlier failures no longer count."""
        self._lost_at, self._failed = None, False
        self._warnings.clear()
        # The hello was made before the welcome, and queued events may be older still: report the present notice again.
        if self._warned:
            self._tell_notice()
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

    # --- later agents ------------------------------------------------------------------------------

    def _apply_newcomer(self, order: Join | End) -> str:
        if (order.job, order.host) != (self._order.job, self._order.host):
            raise OrderError("this agent is another host's or job's")
        if isinstance(order, End):
            self._agent.end_all("told to end everything", order.grace_s)
            return "ending"
        if self._agent.ending:
            return "ending"
        if order.incarnation < self._incarnation:
            raise OrderError(f"launcher {order.incarnation} of the job is not obeyed: {self._incarnation} has followed")
        if order.incarnation > self._incarnation:
            self._agent.kill_helper()  # the launcher that waited for it is gone
        self._order, self._incarnation, self._grace_s = order, order.incarnation, order.orphan_grace_s
        self._facts = None
        self._agent.resume()
        self._channel.connect_to(order.address)
        self._lost_at = None  # the new launcher gets a full grace in which the agent can reach it
        self._orphaned()
        return "adopted"

    def _orphaned(self) -> None:
        if self._lost_at is None:
            self._lost_at = self._agent.now()
            worker_links = [slot.worker_link for slot in self._agent.slots.values()]
            self._failed = any(worker_link is not None and worker_link.asking for worker_link in worker_links)

    def _looked_up(self, found: Found) -> None:
        self._found = found
        self._channel.send_hello()


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
