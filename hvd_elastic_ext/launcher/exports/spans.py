"""Spans of resizes and checkpoints, from the lines of a journal.

A resize lasts from its cause, if the journal has that, to the first step of the new world. Its phases: the
start of newcomers (the others train meanwhile), the forming of the world, the sync, and the time to the first step. A
checkpoint lasts from the request to the manifest: the wait for its commit, and the writing.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.journal import Record, Sink, parse_line
from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.io.threads.follower import Follower
from hvd_elastic_ext.launcher.health.causes import Cause

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)


MAX_HOST_NAMES: Final = 20
"""Hosts that an attribute names."""
MAX_HOSTS: Final = 10_000
"""Hosts that are remembered between two worlds."""
PREFIX: Final = "hvd_elastic."
Attribute = str | int | float | bool | Sequence[str]


@dataclass(frozen=True, slots=True)
class Span:
    """``start`` and ``end`` in Unix seconds. ``error``: what failed; empty if nothing did."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    children: tuple[Span, ...] = ()
    error: str = ""


@dataclass(slots=True)
class _Host:
    """Times of a host's last events (mono): the change by which it causes another world, and starts and readiness of
    its newcomers.
    """

    changed: float = math.inf
    spawned: float = math.inf
    parked: float = -math.inf


class Spans:
    """Takes in the lines of one launcher, in their order."""

    def __init__(self) -> None:
        self._offset = 0.0
        """From monotonic to Unix seconds, by the newest line."""
        self._now = -math.inf
        self._began: float | None = None
        self._hosts: dict[str, _Host] = {}
        self._synced: tuple[int, float] | None = None
        """Generation, and when it last agreed on its state."""
        self._size = 0
        self._start: Record | None = None
        """The line of a start whose first step is not known yet."""

    def take(self, record: Record, at: float | None = None) -> Iterator[Span]:
        """Return the spans that end with this line. ``at``: when it was written (mono), if later than its event."""
        self._offset = record.t - record.mono
        self._now = max(self._now, record.mono if at is None else at)
        self._began = record.mono if self._began is None else self._began
        if (took := _HANDLERS.get(record.event)) is not None:
            yield from took(self, record)

    def _host(self, name: Any) -> _Host:
        key = str(name)
        if key in self._hosts or len(self._hosts) < MAX_HOSTS:
            return self._hosts.setdefault(key, _Host())
        return _Host()

    def _changed(self, names: Iterable[Any], at: float) -> Iterator[Span]:
        for name in names:
            host = self._host(name)
            host.changed = min(host.changed, at)
        return iter(())

    def _published(self, record: Record) -> Iterator[Span]:
        changes = ("added", "removed", "grown", "shrunk", "departing")
        return self._changed((name for change in changes for name in _names(record.get(change))), record.mono)

    def _noticed(self, record: Record) -> Iterator[Span]:
        return self._changed([record.get("host")], record.mono)

    def _exited(self, record: Record) -> Iterator[Span]:
        return iter(()) if record.get("cause") == Cause.TOLD.value else self._noticed(record)

    def _spawned(self, record: Record) -> Iterator[Span]:
        host = self._host(record.get("host"))
        host.spawned = min(host.spawned, record.mono)
        return iter(())

    def _parked(self, record: Record) -> Iterator[Span]:
        self._host(record.get("host")).parked = record.mono
        return iter(())

    def _agreed(self, record: Record) -> Iterator[Span]:
        self._synced = record.generation, record.mono
        return iter(())

    def _woke(self, record: Record) -> Iterator[Span]:
        """A sleep is over, or a pause before a restart: the next world is a start."""
        yield from self._over()
        self._began, self._size = record.mono, 0

    def _stepped(self, record: Record) -> Iterator[Span]:
        if self._start is not None and record.generation == self._start.generation:
            yield from self._over(record.mono)

    def _resized(self, record: Record) -> Iterator[Span]:
        yield from self._over()
        if record.get("cause") == "start":
            self._start = record
        else:
            yield self._resize(record, self._now)

    def _ended(self, _: Record) -> Iterator[Span]:
        return self._over()

    def _over(self, end: float | None = None) -> Iterator[Span]:
        """The span of a start, whose line comes before its first step."""
        line, self._start = self._start, None
        if line is not None:
            synced = self._synced[1] if self._synced and self._synced[0] == line.generation else line.mono
            yield self._resize(line, max(line.mono, synced) if end is None else end)

    def _resize(self, line: Record, end: float) -> Span:
        named = {name for key in ("added", "removed", "failed") for name in _names(line.get(key))}
        concerned = [self._hosts[name] for name in named if name in self._hosts]
        pause = _number(line.get("downtime_s"))
        stop = line.mono if pause is None else min(line.mono, end - pause)
        changed = [host.changed for host in concerned if host.changed < line.mono]
        spawned = [host.spawned for host in concerned if host.spawned < line.mono]
        parked = [host.parked for host in concerned if host.parked <= line.mono]
        start = min([stop, *changed, *spawned])
        if line.get("cause") == "start":
            start = stop = min(line.mono, line.mono if self._began is None else self._began)
        phases = []
        if spawned:
            phases.append(self._span("resize.newcomers", min(spawned), max([min(spawned), *parked])))
        phases.append(self._span("resize.form", stop, line.mono))
        if self._synced is not None and self._synced[0] == line.generation and self._synced[1] >= line.mono:
            phases += [
                self._span("resize.sync", line.mono, min(self._synced[1], end)),
                self._span("resize.first_step", min(self._synced[1], end), end),
            ]
        fields: dict[str, Any] = {"size_before": self._size, "generation": line.generation}
        fields |= {
            key: line.get(key) for key in ("cause", "reason", "size", "downtime_s", "steps_lost", "lost_because")
        }
        fields |= {
            f"hosts_{key}": sorted(_names(line.get(key)))[:MAX_HOST_NAMES] for key in ("added", "removed", "failed")
        }
        size = line.get("size")
        self._size = size if isinstance(size, int) else 0
        self._hosts.clear()
        return self._span("resize", start, end, fields, phases)

    def _sealed(self, record: Record) -> Iterator[Span]:
        took, asked = _number(record.get("seconds")) or 0.0, _number(record.get("since_asked_s")) or 0.0
        written, start = record.mono - took, record.mono - max(took, asked)
        fields = {key: record.get(key) for key in ("step", "bytes", "path")} | {"generation": record.generation}
        phases = [self._span("checkpoint.wait", start, written)] if start < written else []
        phases.append(self._span("checkpoint.write", written, record.mono))
        yield self._span("checkpoint", start, record.mono, fields, phases)

    def _not_sealed(self, record: Record) -> Iterator[Span]:
        reason = str(record.get("reason"))
        fields = {"reason": reason, "generation": record.generation}
        yield self._span("checkpoint", record.mono, record.mono, fields, error=reason)

    def _span(
        self,
        name: str,
        start: float,
        end: float,
        fields: Mapping[str, Any] | None = None,
        children: Iterable[Span] = (),
        *,
        error: str = "",
    ) -> Span:
        attributes = {PREFIX + key: value for key, value in (fields or {}).items() if _is_attribute(value)}
        return Span(name, start + self._offset, max(start, end) + self._offset, attributes, tuple(children), error)


def _is_attribute(value: Any) -> bool:
    return isinstance(value, int | float | str | list) and value not in ("", [])


def _names(value: Any) -> list[str]:
    """Hosts in a list, or of a table."""
    return [str(name) for name in value] if isinstance(value, list | Mapping) else []


def _number(value: Any) -> float | None:
    found = finite_number(value)
    return None if found is None or found < 0 else found


_HANDLERS: Final[Mapping[str, Callable[[Spans, Record], Iterator[Span]]]] = {
    "published": Spans._published,
    "notice": Spans._noticed,
    "fenced": Spans._noticed,
    "exited": Spans._exited,
    "standby": Spans._spawned,
    "spawned": Spans._spawned,
    "parked": Spans._parked,
    "synced": Spans._agreed,
    "stepped": Spans._stepped,
    "resized": Spans._resized,
    "woke": Spans._woke,
    "job_restarted": Spans._woke,
    "slept": Spans._ended,
    "finished": Spans._ended,
    "sealed": Spans._sealed,
    "not_sealed": Spans._not_sealed,
}


# --- sent to a collector


ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP: Final = "http/protobuf"
REMEDY: Final = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
MAX_MESSAGE_CHARS: Final = 300
"""Characters of a message of the SDK."""
_ERROR: Final = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
Line = tuple[str, float]
"""A line of the journal, and when it was written (mono)."""


def why_not(environ: Mapping[str, str]) -> str | None:
    """Why no spans are sent; "" if they are not requested, None if they are sent."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() not in ("otlp", ""):
        return ""
    named = next((name for name in ENDPOINTS if environ.get(name)), None)
    if named is None:
        return ""
    protocol = next((found for name in PROTOCOLS if (found := environ.get(name, "").strip())), HTTP)
    if protocol != HTTP:
        return f"{named}: no spans are sent: the protocol {protocol} is not supported; use {HTTP}"
    return None


def followed(environ: Mapping[str, str], about: Mapping[str, str]) -> Follower[Line] | None:
    """What sends the spans of the job's lines, if the environment asks for that. ``about``: names of job and run."""
    why = why_not(environ)
    if why is None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            sender = Sender(OTLPSpanExporter(), environ, about)
        except ImportError as error:
            why = f"OpenTelemetry: no spans are sent: {error}; {REMEDY}"
        except Exception as error:  # noqa: BLE001 - the SDK refuses some values of variables; the job needs none
            why = f"OpenTelemetry: no spans are sent: {error}"
        else:
            return Follower("OpenTelemetry", sender.take, end=sender.close)
    if why:
        log.warning("%s", why)
    return None


class Tee:
    """A sink of the journal whose lines are followed, too, whether or not they can be written."""

    def __init__(self, sink: Sink, follower: Follower[Line], mono: Any) -> None:
        self._sink, self._follower, self._mono = sink, follower, mono

    def write(self, text: str, /) -> object:
        """Write ``text``, and pass it to the follower."""
        self._follower.put((text, self._mono()))
        return self._sink.write(text)

    def flush(self) -> None:
        """Flush the sink."""
        self._sink.flush()


class Sender:
    """Makes spans of lines, and has ``exporter`` send them."""

    def __init__(self, exporter: SpanExporter, environ: Mapping[str, str], about: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._exporter = exporter
        self._spans = Spans()
        self._said = _First()
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False  # it logs each try: one line is enough
        logger.addHandler(self._said)
        own = {f"hvd_elastic.{name}": value for name, value in about.items()}
        if "OTEL_SERVICE_NAME" not in environ and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            own["service.name"] = "hvd-elastic"
        provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self._tracer = provider.get_tracer("hvd_elastic_ext", _version())

    def take(self, line: Line) -> str | None:
        """Send what has ended with a line. Return what went wrong: "" if nothing did, None if there was nothing."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        text, at = line
        record = parse_line(text)
        made: list[Any] = []
        for span in self._spans.take(record, at) if record is not None else ():
            self._make(span, None, made)
        sampled = [span for span in made if span.get_span_context().trace_flags.sampled]
        if not sampled:
            return None
        self._said.text = ""
        if self._exporter.export(sampled) is SpanExportResult.SUCCESS:
            return ""
        return f"spans cannot be sent: {self._said.text or 'the collector does not answer'}"

    def close(self) -> None:
        """Close connections."""
        self._exporter.shutdown()
        logging.getLogger("opentelemetry").removeHandler(self._said)

    def _make(self, span: Span, within: Any, made: list[Any]) -> None:
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        one = self._tracer.start_span(span.name, context=within, attributes=span.attributes, start_time=_ns(span.start))
        if span.error:
            one.set_status(Status(StatusCode.ERROR, span.error))
        for child in span.children:
            self._make(child, set_span_in_context(one), made)
        one.end(_ns(span.end))
        made.append(one)


class _First(logging.Handler):
    """Keeps the first message of the SDK, which has the reason. Later ones only say that it gives up."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().partition("\n")[0]
        found = _ERROR.search(text)
        self.text = self.text or (text[:MAX_MESSAGE_CHARS] if found is None else found[1])


def _version() -> str:
    from hvd_elastic_ext import __version__

    return __version__


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
