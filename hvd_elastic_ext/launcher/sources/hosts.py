"""Sources of hosts for the launcher: one class each, all feeding one :class:`HostFeed`.

Every source runs in a thread of its own, so that a script that hangs, or a file system that stalls, never delays the
driver.
"""

from __future__ import annotations

import functools
import http.client
import logging
import os
import socket
import threading
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.errors import HOSTS_KEPT, BadPublication, ElasticError, SourceUnavailable, UsageError
from hvd_elastic_ext.core.hosts import HostChange, HostSet, follow
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.printable import one_line
from hvd_elastic_ext.core.publication import Departure, Publication, from_json, parse_hosts_text
from hvd_elastic_ext.io.file_watch import MAX_BYTES, MISSING, BeingWritten, FileWatch, read_text
from hvd_elastic_ext.io.http_exchange import timed_response
from hvd_elastic_ext.io.peers import user_of
from hvd_elastic_ext.io.programs import Program, TooMuchOutput
from hvd_elastic_ext.io.threads.beside import report

log = logging.getLogger(__name__)


SCRIPT_INTERVAL_S: Final = 1.0
"""Pause between two runs of a discovery script; Horovod's own."""
SCRIPT_TIMEOUT_S: Final = 30.0
"""A discovery script that takes longer is killed and counts as failed. (Stock Horovod waits for ever.)"""
LONG_POLL_S: Final = 30
ANSWER_S: Final = LONG_POLL_S + 10
"""Longest time in seconds for a whole answer of the daemon."""
DEFECT_S: Final = 30.0
RETRY_S: Final = (0.2, 5.0)
"""First and longest pause before asking a discovery URL again."""
SCRIPT_HINT: Final = "run it by hand: it must print lines of host:slots and end with exit code 0"
STOP_S: Final = 2.0
"""Longest wait for the end of a source's thread; what blocks it is closed or killed first, if possible."""
MAX_BODY: Final = 4 * 1024 * 1024
MAX_HEAD: Final = 256 * 1024
MAX_OUTPUT: Final = MAX_BYTES
"""Bytes that a discovery script may print; as many as a hosts file may have."""


class HostSource(Protocol):
    """Feeds host lists until stopped. ``start`` returns at once; ``stop`` is idempotent and joins."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class FixedSource:
    """Hosts given on the command line."""

    def __init__(self, hosts: HostSet, feed: HostFeed) -> None:
        self._hosts = hosts
        self._feed = feed

    def start(self) -> None:
        """Offer the hosts once, before it returns."""
        self._feed.offer(Publication("--hosts", 1, self._hosts))

    def stop(self) -> None:
        """Nothing runs."""


def read_hosts_file(path: Path, *, default_slots: int | None) -> HostSet:
    """Read a hosts file at the start. Raises :class:`ElasticError` if it cannot be used; empty while it is written."""
    try:
        return parse_hosts_text(read_text(path), where=str(path), default_slots=default_slots)
    except BeingWritten:
        return HostSet()
    except SourceUnavailable as error:
        do = "write it first: lines of host:slots" if error.why == MISSING else "give a text file of host:slots lines"
        remedy = "" if ";" in error.why else f"; {do}"
        raise UsageError(f"--hosts-file {error.where} {error.why}{remedy}") from None


class HostsFileSource:
    """A hosts file, read whenever it may have changed."""

    def __init__(self, path: Path, feed: HostFeed, *, default_slots: int | None) -> None:
        self._path = path
        self._feed = feed
        self._default_slots = default_slots
        self._sequence = 0
        self._watch = FileWatch(path, self._read)

    def check(self) -> None:
        """Raise :class:`ElasticError` if the file cannot be used now: there may be nothing that would write it."""
        read_hosts_file(self._path, default_slots=self._default_slots)

    def start(self) -> None:
        """Begin to watch the file; raises ``RuntimeError`` if called twice."""
        self._watch.start()  # looks at the file first of all

    def stop(self) -> None:
        """End the watch; waits at most about a second for its thread, which a file system may block."""
        self._watch.stop()

    def _read(self) -> None:
        try:
            hosts = parse_hosts_text(read_text(self._path), where=str(self._path), default_slots=self._default_slots)
        except BeingWritten:
            return  # the watch calls again when the writer is done
        except ElasticError as error:
            self._feed.refuse(error)
            return
        self._sequence += 1
        self._feed.offer(Publication(str(self._path), self._sequence, hosts))


class _Looping:
    """A source that works in a loop: ``_once`` says how long to pause before the next time."""

    def __init__(self, feed: HostFeed, *, name: str, where: str) -> None:
        self._feed, self._where = feed, where
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._interrupt()
        if self._thread.is_alive():
            # It may be inside a connect or a name look-up, which nothing can interrupt; it is a daemon thread.
            self._thread.join(STOP_S)

    def _loop(self) -> None:
        known: set[str] = set()
        while not self._stopped.is_set():
            try:
                pause = self._once()
            except Exception as error:  # noqa: BLE001 - a main loop; without it no host would ever come or go
                report(error, known, f"the hosts stay as they are; their source is asked again in {DEFECT_S:.0f} s")
                self._feed.refuse(SourceUnavailable(self._where, f"a defect of hvd-elastic: {type(error).__name__}"))
                pause = DEFECT_S
            self._stopped.wait(pause)

    def _once(self) -> float:
        raise AssertionError("each source defines this")

    def _interrupt(self) -> None:
        """Make a blocking ``_once`` return soon."""


class ScriptSource(_Looping):
    """A discovery script, as ``horovodrun --host-discovery-script`` takes one.

    Each output is a complete list. A first run that fails ends the job, as it
    does with horovodrun: that is a misconfiguration. A later one that fails,
    hangs or prints nonsense leaves the hosts as they were.
    """

    def __init__(
        self,
        command: str,
        feed: HostFeed,
        *,
        default_slots: int | None,
        interval_s: float = SCRIPT_INTERVAL_S,
        timeout_s: float = SCRIPT_TIMEOUT_S,
    ) -> None:
        super().__init__(feed, name="hvd-hosts-script", where=command)
        self._command = command
        self._default_slots = default_slots
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._sequence = 0
        self._program = Program(command, most=MAX_OUTPUT)

    def _once(self) -> float:
        try:
            hosts = parse_hosts_text(self._run(), where=self._command, default_slots=self._default_slots)
        except ElasticError as error:
            if not self._stopped.is_set():
                if self._sequence == 0:
                    self._feed.fail(error)  # this ends the job with this error, which is then reported once
                else:
                    self._feed.refuse(error)
            return self._interval_s
        self._sequence += 1
        self._feed.offer(Publication(self._command, self._sequence, hosts))
        return self._interval_s

    def _run(self) -> str:
        """Run the script once, by the shell as horovodrun does; its output. Raises :class:`SourceUnavailable`."""
        try:
            ended = self._program.run(within_s=self._timeout_s)
        except TimeoutError:
            why = f"gave no list within {self._timeout_s:g} s and was killed; {SCRIPT_HINT}"
            raise SourceUnavailable(self._command, why) from None
        except TooMuchOutput:
            why = f"printed more than {MAX_OUTPUT} bytes and was killed; it must print host:slots lines only"
            raise SourceUnavailable(self._command, why) from None
        except OSError as error:
            raise SourceUnavailable(self._command, f"cannot be run ({error.strerror}); {SCRIPT_HINT}") from None
        if ended.code != 0:
            raise SourceUnavailable(self._command, f"{_ended(ended.code)}; {SCRIPT_HINT}")
        return ended.output.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")

    def _interrupt(self) -> None:
        self._program.stop()


def _ended(code: int) -> str:
    """How a shell ended that ran a script."""
    if code < 0:
        return f"was killed by signal {-code}"
    meaning = {126: " (it is not executable)", 127: " (there is no such program)"}.get(code, "")
    return f"ended with exit code {code}{meaning}"


class PushSource(_Looping):
    """The daemon's push: ``unix:///path`` or ``http://host:port``, long-polled.

    A publication arrives within a round trip of being made. While the daemon
    cannot be reached the hosts stay as they were.
    """

    def __init__(self, url: str, feed: HostFeed, *, user: int | None = None) -> None:
        """``user``: see :func:`connector`."""
        super().__init__(feed, name="hvd-hosts-push", where=url)
        self._url = url
        self._connect = connector(url, user=user)
        self._connection: http.client.HTTPConnection | None = None
        self._newest: Publication | None = None
        self._failures = 0

    def _once(self) -> float:
        try:
            publication = self._ask()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            if not self._stopped.is_set():
                self._feed.refuse(SourceUnavailable(self._url, _no_answer(error)))
        except BadPublication as error:
            self._drop()
            self._feed.refuse(error)
        else:
            self._failures = 0
            if publication is not None:
                self._newest = publication
                self._feed.offer(publication)
            return 0.0
        self._failures += 1
        return pause_after(self._failures, first=RETRY_S[0], longest=RETRY_S[1])

    def _ask(self) -> Publication | None:
        if self._connection is None:
            self._connection = self._connect(ANSWER_S)
            # A daemon that sends a byte a second must not keep this thread for ever.
            timed: Any = functools.partial(timed_response, within_s=ANSWER_S, most=MAX_BODY + MAX_HEAD)
            self._connection.response_class = timed
        query = ""
        if self._newest is not None:
            query = "?" + urlencode({"after": self._newest.sequence, "source": self._newest.source})
        self._connection.request("GET", f"/hosts{query}")
        response = self._connection.getresponse()
        body = response.read(MAX_BODY + 1)
        if response.status == http.client.NO_CONTENT:
            return None
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"answered {response.status} {one_line(response.reason, most=80)}")
        if len(body) > MAX_BODY:
            raise BadPublication(f"{self._url}: the publication is larger than {MAX_BODY} bytes")
        return from_json(body, where=self._url)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _interrupt(self) -> None:
        connection = self._connection
        if connection is not None and connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def _no_answer(error: OSError | http.client.HTTPException) -> str:
    """Why a daemon gave no hosts, and what to check."""
    if isinstance(error, PermissionError) and error.errno is None:
        return str(error)  # of :class:`_UnixConnection`, which says what to do
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    why = one_line(why, most=200)  # a server that is not HTTP chooses these words
    return f"{why}; check that hvd-discover runs, and that its --listen is this address"


def connector(url: str, *, user: int | None = None) -> Callable[[float], http.client.HTTPConnection]:
    """A function from a timeout in seconds to a connection to ``url``. Raises ``ValueError`` for other schemes.

    ``user``: who may listen at a UNIX socket, besides this process's own user and root.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return lambda timeout: _UnixConnection(parts.path, timeout, trusted={0, os.geteuid(), user})
    host = parts.hostname
    if parts.scheme == "http" and host and parts.port and parts.path in ("", "/"):
        port = parts.port
        return lambda timeout: http.client.HTTPConnection(host, port, timeout=timeout)
    raise ValueError(f"{url!r} is neither unix:///path nor http://host:port")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float, *, trusted: Set[int | None]) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._trusted = trusted

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        if (user := user_of(self.sock)) not in self._trusted:
            self.close()
            raise PermissionError(
                f"user {user} listens there, and is not trusted to name hosts; --discovery-user {user} trusts it"
            )


# --- the newest accepted list


class HostFeed:
    """Holds the newest accepted hosts. A refused or unreadable list removes no host.

    Each reason for a refusal is written to the journal once, until it changes.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._lock = threading.Lock()
        self._accepted: Publication | None = None
        self._hosts = HostSet()
        self._reason: str | None = None
        self._number = 0
        self.generation = 0
        """The number of the present world, set by the driver; journal lines have it."""
        self.listener: Callable[[], object] = lambda: None
        """Called, from any thread, on every change, refusal and failure."""
        self.keeps = False
        """Whether hosts stay in use although the newest accepted list names none; set by the driver."""
        self.failure: ElasticError | None = None
        """Set when no host list can ever come: the job cannot go on."""

    def offer(self, publication: Publication) -> None:
        """Accept a publication unless it is late."""
        with self._lock:
            if not publication.supersedes(self._accepted):
                return
            # Also of a daemon's list: this launcher may have missed some, and the daemon may have begun anew.
            hosts, change = follow(self._hosts, publication.hosts)
            before = self._accepted
            same = not change and publication.has_same_content(before)
            same_names = not change and before is not None and publication.departing == before.departing
            refused, self._reason = self._reason, None
            self._accepted, self._hosts = publication, hosts
            if same and refused is None:
                return
            if not same_names:  # a new price or node alone gives no line: prices of spot hosts change often
                self._record(publication, hosts, change)
            elif refused is not None:
                log.info("the host list is accepted again; it names the same hosts as before")
        self.listener()

    def _record(self, publication: Publication, hosts: HostSet, change: HostChange) -> None:
        self._number += 1
        self.journal.record(
            "published",
            generation=self.generation,
            number=self._number,
            source=publication.source,
            hosts=hosts.as_slots(),
            departing=[d.host for d in publication.departing],
            added=change.added,
            removed=change.removed,
            grown=change.grown,
            shrunk=change.shrunk,
        )

    def refuse(self, error: ElasticError) -> None:
        """Note why the newest list was not accepted."""
        with self._lock:
            hosts_stay = bool(self._hosts) or self.keeps
            kept = HOSTS_KEPT if hosts_stay and isinstance(error, SourceUnavailable) else ""
            reason = f"{error}{kept}"
            if reason == self._reason:
                return
            self._reason = reason
            more = {"kept": True} if hosts_stay else {}
            self.journal.record("refused", generation=self.generation, reason=self._reason, **more)
        self.listener()

    def hosts(self) -> HostSet:
        """The hosts as they are now, most senior first."""
        with self._lock:
            return self._hosts

    @property
    def reason(self) -> str | None:
        """Why the newest list was refused, or None if it was accepted."""
        with self._lock:
            return self._reason

    @property
    def answered(self) -> bool:
        """Whether a list was accepted, even an empty one."""
        with self._lock:
            return self._accepted is not None

    def departing(self) -> tuple[Departure, ...]:
        """Hosts that are about to go, as the newest accepted publication says."""
        with self._lock:
            return self._accepted.departing if self._accepted is not None else ()

    def fail(self, error: ElasticError) -> None:
        """Give up this source for good."""
        self.failure = error
        self.listener()
