"""The server answers the browser of its user, and nobody else."""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import json
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from hvd_elastic_ext.core.connections import MOST
from hvd_elastic_ext.dashboard.guard import HEADERS
from tests.integration.dashboard.conftest import Served, dashboard, failed_job, write_job
from tests.support.journals import JournalMaker


def parts(served: Served, job: str = "digits") -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(served.host, served.port, timeout=20)
    connection.request("GET", f"/api/live?job={job}", headers={"Authorization": f"Bearer {served.token}"})
    return connection, connection.getresponse()


def read_until(answer: http.client.HTTPResponse, name: str, wanted: str) -> dict[str, object]:
    """The first part of this name that holds ``wanted``."""
    event = ""
    for raw in answer:
        if raw.startswith(b"data: ") and wanted in raw.decode() and event == name:
            return dict(json.loads(raw[6:]))
        event = raw[7:].decode().strip() if raw.startswith(b"event: ") else ""
    raise AssertionError(f"no {name} with {wanted}")


def test_a_name_that_somebody_points_here_gets_nothing(served: Served) -> None:
    for path in ("/", "/api/jobs"):
        status, text, _ = served.ask(path, Host="evil.example")
        assert (status, "digits" in text) == (421, False)


def test_without_the_token_there_is_the_empty_page_alone(served: Served) -> None:
    for path in ("/api/jobs", "/api/live?job=digits", "/api/logs?job=digits", "/api/log?file=rank.2/stderr"):
        for token in (None, "wrong", served.token[:-1]):
            assert served.ask(path, token=token)[0] == 401
    status, text, headers = served.ask("/", token=None)
    assert (status, "digits" in text) == (200, False)
    assert {name: headers[name.lower()] for name in HEADERS} == dict(HEADERS)
    assert "default-src 'none'" in headers["content-security-policy"]


def test_the_library_of_the_charts_comes_from_here_and_is_kept_by_the_browser(served: Served) -> None:
    _, page, _ = served.ask("/", token=None)
    addresses = re.findall(r'class="library" data-src="([^"]+)"', page)
    assert [each.partition("?v=")[0] for each in addresses] == ["bokeh.min.js", "bokeh-api.min.js"]
    for each in addresses:
        assert each.partition("?v=")[2] == importlib.metadata.version("bokeh")
        status, text, headers = served.ask(f"/{each}", token=None)
        assert (status, headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
        assert headers["content-type"].startswith("text/javascript")
        assert headers["x-content-type-options"] == "nosniff"
        assert "Bokeh Contributors" in text[:1000]
    assert served.ask("/bokeh-gl.min.js")[0] == 404


@pytest.mark.parametrize("host", ["[::1]/x?", "[::1]?", "[::1]#"])
def test_a_path_in_the_name_of_the_server_opens_nothing(served: Served, host: str) -> None:
    assert served.ask("/api/jobs", token=None, Host=host)[0] == 421


def test_text_that_is_no_utf8_is_shown(served: Served, folder: Path) -> None:
    write_job(folder, "torn", JournalMaker().add("finished", code=1, reason="\ud800"))
    assert "torn" in [job["name"] for job in served.json("/api/jobs")]


def test_a_change_is_refused_without_the_token_from_another_origin_and_as_a_form(served: Served) -> None:
    block = json.dumps({"do": "block", "host": "h1"})
    own = {"Content_Type": "application/json"}
    path = "/api/act?job=digits"
    assert served.ask(path, method="POST", token=None, body=block, **own)[0] == 401
    assert served.ask(path, method="POST", body=block, Origin="http://evil.example", **own)[0] == 403
    assert served.ask(path, method="POST", body=block, Content_Type="text/plain")[0] == 400
    assert served.ask(path)[0] == 405
    for wrong in ("{", "[]", '{"do": "scale", "host": "h1"}', '{"do": "block", "host": "h 1"}', "x" * 5000):
        status, text, _ = served.ask(path, method="POST", body=wrong, **own)
        assert (status, list(json.loads(text))) == (400, ["error"])


@pytest.mark.parametrize("seconds", ["1e999", "-Infinity", "NaN", "9" * 400, "true", '"5"', "[]"])
def test_a_host_is_blocked_for_a_time_that_there_is_or_not_at_all(served: Served, seconds: str) -> None:
    body = f'{{"do": "block", "host": "h1", "for": {seconds}}}'
    status, text, _ = served.ask("/api/act?job=trains", method="POST", body=body, Content_Type="application/json")
    assert (status, "makes no sense; give a number above 0" in json.loads(text)["error"]) == (400, True)


def test_no_file_of_the_machine_is_served(served: Served) -> None:
    assert served.ask("/../../etc/passwd")[0] == 404
    assert served.ask("/command.py")[0] == 404
    assert served.ask("/api/log?job=digits&file=../journal.jsonl")[0] == 400


def test_what_happens_is_sent_within_half_a_second(served: Served, folder: Path) -> None:
    journal = JournalMaker().add("started", run="r").resized("start", 2, hosts={"a": 2}, added=["a"]).steps(20)
    path = write_job(folder, "live", journal)
    connection, answer = parts(served, "live")
    read_until(answer, "timeline", "start")
    with path.open("a") as file:
        file.write(JournalMaker(mono=103.0).add("stalled", ranks=[1], hosts=["a"], reason="no step").lines[0] + "\n")
    began = time.monotonic()
    read_until(answer, "timeline", "stalled")
    took = time.monotonic() - began
    connection.close()
    assert took < 5  # half a second on an idle machine; benchmarks measure it


def test_all_jobs_are_listed_also_one_that_begins_later(served: Served, folder: Path) -> None:
    [job] = [each for each in served.json("/api/jobs") if each["name"] == "digits"]
    assert (job["code"], job["runs"]) == (1, False)
    write_job(folder, "later", JournalMaker().add("started", run="r"))
    assert {"digits", "later"} <= {each["name"] for each in served.json("/api/jobs")}


def test_output_is_found_by_rank_by_text_and_by_time(served: Served) -> None:
    assert [each["file"] for each in served.json("/api/logs?job=digits")["files"]] == [
        "rank.0/stderr",
        "rank.2/stderr",
    ]
    (hit, *_) = served.json("/api/search?job=digits&q=modulenotfound&generation=3")["hits"]
    assert hit["file"] == "rank.2/stderr"
    assert served.json("/api/log?job=digits&file=rank.0/stderr&start=0")["text"].startswith("step 0\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_with_pages_open(folder: Path, number: signal.Signals) -> None:
    with dashboard(folder) as served:
        connection, answer = parts(served)
        read_until(answer, "now", "digits")
        served.process.send_signal(number)
        served.process.wait(10)
        connection.close()


def test_a_journal_that_nobody_has_written_is_said(tmp_path: Path) -> None:
    write_job(tmp_path, "empty", failed_job(tmp_path)).unlink()
    (tmp_path / "other").mkdir()
    with dashboard(tmp_path, str(tmp_path / "other")) as served:
        connection, answer = parts(served, "")
        for raw in answer:
            if b"cannot be read" in raw:
                break
        connection.close()


@pytest.mark.parametrize("said", [b"", b"GET /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "], ids=["nothing", "half"])
def test_hundreds_of_connections_that_ask_nothing_neither_stop_the_page_nor_fill_the_log(
    folder: Path, said: bytes
) -> None:
    with dashboard(folder, files=160) as served, contextlib.ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection((served.host, served.port), timeout=20)).sendall(said)
        assert [served.ask("/api/jobs")[0] for _ in range(6)] == [200] * 6
        assert served.ask("/", token=None)[0] == 200
    assert [line for line in served.process.output.splitlines() if not line.startswith("http://")] == []


def test_a_page_that_is_open_stays_open_while_strangers_come_and_do_not_read(tmp_path: Path) -> None:
    path = write_job(tmp_path, "digits", JournalMaker().add("started", run="r1").resized("start", 1).steps(3))
    with dashboard(tmp_path) as served, contextlib.ExitStack() as stack:
        connection, answer = parts(served)
        stack.enter_context(contextlib.closing(connection))
        read_until(answer, "now", "digits")
        for _ in range(MOST + 50):
            stranger = stack.enter_context(socket.create_connection((served.host, served.port), timeout=20))
            stranger.sendall(b"GET /bokeh.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3)
        assert len(served.json("/api/jobs")) == 1
        with path.open("a") as file:
            file.write(JournalMaker(mono=103.0).add("stalled", ranks=[1], hosts=["a"], reason="x").lines[0] + "\n")
        read_until(answer, "timeline", "stalled")


STRANGE = [b"\xff\xfe\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"]


@pytest.mark.parametrize("said", STRANGE, ids=["no HTTP", "another protocol"])
def test_what_is_no_request_leaves_no_line(folder: Path, said: bytes) -> None:
    with dashboard(folder) as served:
        for _ in range(20):
            with socket.create_connection((served.host, served.port), timeout=20) as stranger:
                stranger.sendall(said)
                assert stranger.recv(100).startswith(b"HTTP/1.1 4")
    assert [line for line in served.process.output.splitlines() if not line.startswith("http://")] == []
