"""Sends spans to a collector of OpenTelemetry, if its standard variables name one.

The SDK is loaded only then, and runs in a thread: a collector that does not answer delays nothing else. The protocol is
OTLP over HTTP. Sampling, headers, certificates and names follow the SDK's own variables.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.journal import Sink, parse_line
from hvd_elastic_ext.io.threads.follower import Follower
from hvd_elastic_ext.launcher.exports.spans import Span, Spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)

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
