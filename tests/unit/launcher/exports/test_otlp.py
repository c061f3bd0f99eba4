"""Spans that go to a collector: with the SDK's own exporter in memory, and with a collector on this machine."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.io.threads.follower import Follower
from hvd_elastic_ext.launcher.exports.spans import Sender, Tee, followed, why_not
from tests.support.clock import ManualClock
from tests.support.serving import Serving, serving

ABOUT = {"job": "digits", "run": "r1"}
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def lines() -> list[str]:
    """Return a journal with a crash and a checkpoint."""
    clock, sink = ManualClock(mono=100.0, wall=2_000_000.0), io.StringIO()
    journal = Journal(sink, clock)
    journal.record("started", generation=0)
    clock.advance(5.0)
    journal.record("resized", generation=1, cause="start", added=["a", "b"], size=2)
    clock.advance(1.0)
    journal.record("stepped", generation=1, step=1)
    clock.advance(4.0)
    journal.record("exited", generation=1, host="b", slot=0, cause="crashed", reason="exit code 1")
    clock.advance(1.0)
    cost = {"downtime_s": 1.0, "steps_lost": 3}
    journal.record("resized", generation=2, cause="worker failed", removed=["b"], failed={"b": 1}, size=1, **cost)
    clock.advance(9.0)
    journal.record("sealed", generation=2, step=9, path="/ck/9", bytes=10, seconds=2.0)
    journal.record("not_sealed", generation=2, reason="disk full", again_s=9.0)
    return sink.getvalue().splitlines(keepends=True)


def at(line: str) -> float:
    mono: float = json.loads(line)["mono"]
    return mono


def spans(server: Serving) -> list[Any]:
    requests = [ExportTraceServiceRequest.FromString(body) for _, body in server.got]
    return [span for each in requests for of in each.resource_spans for scope in of.scope_spans for span in scope.spans]


def test_a_resize_and_a_checkpoint_are_spans_with_their_phases_as_children() -> None:
    exporter = InMemorySpanExporter()
    sender = Sender(exporter, {}, ABOUT)
    assert [sender.take((line, at(line))) for line in lines()] == [None, None, "", None, "", "", ""]
    found = exporter.get_finished_spans()
    parents = {span.context.span_id: span.name for span in found}
    tree = [(span.name, parents.get(span.parent.span_id) if span.parent else None) for span in found]
    assert tree == [
        ("resize.form", "resize"),
        ("resize", None),
        ("resize.form", "resize"),
        ("resize", None),
        ("checkpoint.write", "checkpoint"),
        ("checkpoint", None),
        ("checkpoint", None),
    ]
    crash = found[3]
    assert (crash.start_time, crash.end_time) == (int(2_000_010e9), int(2_000_011e9))
    assert crash.attributes is not None
    assert (crash.attributes["hvd_elastic.cause"], crash.attributes["hvd_elastic.steps_lost"]) == ("worker failed", 3)
    assert (found[-1].status.status_code, found[-1].status.description) == (StatusCode.ERROR, "disk full")
    resource = crash.resource.attributes
    assert (resource["service.name"], resource["hvd_elastic.job"], resource["hvd_elastic.run"]) == (
        "hvd-elastic",
        "digits",
        "r1",
    )
    sender.close()


def test_the_standard_variables_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    exporter = InMemorySpanExporter()
    sender = Sender(exporter, {"OTEL_SERVICE_NAME": "mine"}, ABOUT)
    for line in lines():
        sender.take((line, at(line)))
    assert {span.resource.attributes["service.name"] for span in exporter.get_finished_spans()} == {"mine"}
    sender.close()


def test_a_collector_gets_the_spans_over_http(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(200) as server:
        monkeypatch.setenv(ENDPOINT, server.url)
        follower = followed({ENDPOINT: "set"}, ABOUT)
        assert follower is not None
        for line in lines():
            follower.put((line, at(line)))
        follower.close()
    assert {path for path, _ in server.got} == {"/v1/traces"}
    assert [span.name for span in spans(server)].count("resize") == 2
    assert not caplog.records


@pytest.mark.parametrize("answers", [False, True])
def test_a_collector_that_cannot_be_told_is_told_once_and_holds_nothing_up(
    answers: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(400) as server, socket.create_server(("127.0.0.1", 0)) as closed:
        port = server.server_port if answers else closed.getsockname()[1]
        closed.close()
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        follower = followed({ENDPOINT: "set"}, ABOUT)
        assert follower is not None
        begun = time.monotonic()
        for line in lines():
            follower.put((line, at(line)))
        assert time.monotonic() - begun < 1.0
        follower.close(30.0)
    [said] = [record.getMessage() for record in caplog.records if record.name.startswith("hvd_elastic_ext")]
    why = "Failed to export spans batch code: 400, reason: Bad Request" if answers else "Connection refused"
    assert said == f"OpenTelemetry: spans cannot be sent: {why}; the job goes on"


def test_the_end_of_a_job_waits_a_bounded_time_for_a_collector_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
        follower = followed({ENDPOINT: "set"}, ABOUT)
        assert follower is not None
        for line in lines():
            follower.put((line, at(line)))
        begun = time.monotonic()
        follower.close(0.2)
        assert time.monotonic() - begun < 2.0
    follower._thread.join()


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({ENDPOINT: "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "True"}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_SERVICE_NAME": "x"}, False),
    ],
)
def test_standard_variables_turn_it_on_and_off(environ: Mapping[str, str], asked: bool) -> None:
    assert (why_not(environ) is None) is asked
    assert asked or why_not(environ) == ""


def test_another_protocol_is_told(caplog: pytest.LogCaptureFixture) -> None:
    environ = {ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert followed(environ, ABOUT) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{ENDPOINT}: no spans are sent: the protocol grpc is not supported; use http/protobuf"
    ]


def test_without_the_package_it_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert followed({ENDPOINT: "http://c:4318"}, ABOUT) is None
    assert "pip install opentelemetry-sdk" in caplog.text


def test_a_variable_that_the_sdk_refuses_costs_the_spans_and_not_the_job() -> None:
    code = "import os; from hvd_elastic_ext.launcher.exports import spans; print(spans.followed(os.environ, {}))"
    environ = {**os.environ, ENDPOINT: "http://127.0.0.1:9", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert "no spans are sent: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be" in done.stderr


def test_nothing_of_it_is_loaded_otherwise() -> None:
    code = (
        "import sys; from hvd_elastic_ext.launcher.cli import run; from hvd_elastic_ext.launcher.exports import spans; "
        "assert spans.followed({}, {}) is None; "
        "print([name for name in sys.modules if name.partition('.')[0] in ('opentelemetry', 'tensorboard')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_lines_are_followed_whether_or_not_the_disk_takes_them() -> None:
    class Full:
        def write(self, _: str, /) -> object:
            raise OSError(28, "No space left on device")

        def flush(self) -> None:
            pass

    got: list[Any] = []
    follower: Follower[Any] = Follower("it", lambda line: got.append(line) or "")
    clock = ManualClock(mono=7.0, wall=0.0)
    journal = Journal(Tee(Full(), follower, clock.mono), clock)
    journal.record("woke", generation=1)
    journal.record("slept", generation=1)
    follower.close()
    assert [(json.loads(text)["event"], at) for text, at in got] == [("woke", 7.0), ("slept", 7.0)]


def test_what_a_slow_reader_cannot_take_is_left_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    goes_on, got = threading.Event(), []
    entered = threading.Event()

    def take(item: int) -> str:
        entered.set()
        goes_on.wait(30)
        got.append(item)
        return ""

    follower: Follower[int] = Follower("it", take, room=2)
    follower.put(0)
    assert entered.wait(30)
    for item in range(1, 6):
        follower.put(item)
    goes_on.set()
    follower.close()
    assert got == [0, 1, 2]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_error_over_one_item_is_told_and_costs_no_later_one(caplog: pytest.LogCaptureFixture) -> None:
    got: list[int] = []

    def take(item: int) -> str:
        got.append(item)
        if item < 2:
            raise ValueError("it cannot be encoded")
        return ""

    follower: Follower[int] = Follower("it", take)
    for item in range(4):
        follower.put(item)
    follower.close()
    assert got == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "it: ValueError: it cannot be encoded; the job goes on"
    ]
