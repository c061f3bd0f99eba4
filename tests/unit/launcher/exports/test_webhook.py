"""A webhook with a real HTTP server."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.exports import webhook
from hvd_elastic_ext.launcher.exports.webhook import MAX_ATTEMPTS, Message, Webhook, webhook_url
from tests.support import bad_servers
from tests.support.bad_servers import answering, drips, says
from tests.support.serving import serving
from tests.support.waiting import wait_until

ABOUT = {"job": "digits", "run": "r1"}
MESSAGE = Message("finished", "0", "ended: training is done")


def sent(url: str) -> list[float]:
    """Send one message, and wait for the end. Return the pauses."""
    pauses: list[float] = []
    hook = Webhook(url, ABOUT, wait=pauses.append)
    hook.send(MESSAGE)
    hook.close()
    return pauses


def test_a_message_is_sent_with_the_name_of_its_job_and_in_the_form_of_slack() -> None:
    with serving(200) as server:
        assert sent(f"{server.url}/services/secret") == []
    [(path, text)] = server.got
    assert path == "/services/secret"
    assert json.loads(text) == {"text": "digits: ended: training is done", "topic": "finished", "cause": "0", **ABOUT}


def test_a_server_that_fails_is_asked_again_and_what_it_refuses_is_not_sent_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(500, 429, 200) as server:
        assert sent(f"{server.url}/services/secret") == [1.0, 2.0]
    assert len(server.got) == MAX_ATTEMPTS
    assert not caplog.records
    with serving(404) as server:
        assert sent(f"{server.url}/services/secret") == []
    assert len(server.got) == 1
    assert [each.getMessage() for each in caplog.records] == [
        "--notify: no message to 127.0.0.1: it answers 404 Not Found; the job goes on"
    ]


def test_a_webhook_that_is_not_there_is_told_once_without_its_secret(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    hook = Webhook(f"http://127.0.0.1:{port}/services/secret", ABOUT, wait=lambda _: None)
    hook.send(MESSAGE)
    hook.send(MESSAGE)
    hook.close()
    [line] = [each.getMessage() for each in caplog.records]
    assert "Connection refused" in line
    assert "secret" not in line


def test_a_server_that_does_not_speak_http_is_told_and_the_next_message_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hook = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/secret", ABOUT, wait=lambda _: None)
        hook.send(MESSAGE)
        hook.send(MESSAGE)
        server.settimeout(10)
        for answer in [b"SSH-2.0-x\r\n"] * MAX_ATTEMPTS + [b"HTTP/1.1 200 OK\r\n\r\n"]:
            connection, _ = server.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)
        hook.close()
    [line] = [each.getMessage() for each in caplog.records]
    assert line == ("--notify: no message to 127.0.0.1: its answer is not HTTP (BadStatusLine); the job goes on")


def test_a_redirect_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    with serving(302) as server:
        sent(f"{server.url}/services/secret")
    assert [path for path, _ in server.got] == ["/services/secret"]
    assert "answers 302" in caplog.text


def test_the_end_of_a_job_waits_a_bounded_time_for_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/", ABOUT, wait=lambda _: None)
        hook.send(MESSAGE)
        hook.close(within_s=0.05)
        assert any(thread.name == "follower" for thread in threading.enumerate()), "it waited for the answer"
    wait_until(lambda: not any(thread.name == "follower" for thread in threading.enumerate()), what="the thread's end")


def test_messages_beyond_those_that_may_wait_are_dropped_and_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("hvd_elastic_ext.launcher.exports.webhook.MAX_QUEUED", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/", ABOUT, wait=lambda _: None)
        for _ in range(4):  # one is being sent, and one waits
            hook.send(MESSAGE)
        hook.close(within_s=0.05)
    assert "--notify does not keep up: what happens now is left out there" in caplog.text
    wait_until(lambda: not any(thread.name == "follower" for thread in threading.enumerate()), what="the thread's end")


def test_the_address_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text("https://hooks.example.com/services/secret\n")
    assert webhook_url(f"file:{path}") == "https://hooks.example.com/services/secret"
    assert webhook_url("http://127.0.0.1:8080/x") == "http://127.0.0.1:8080/x"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hooks.example.com",
        "ftp://secret.com/",
        "https://",
        "http://secret:99999/",
        "https://a b/",
        "https://h/secret-ü",
    ],
)
def test_what_is_no_address_is_refused_in_one_line_without_it(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--notify: that is not a URL; write https://HOST/") as refused:
        webhook_url(text)
    assert "secret" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--notify .*absent' cannot be read: No such file"):
        webhook_url(f"file:{tmp_path}/absent")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says(bad_servers.ESCAPES), "it answers 503 \\e[2J\\e]0;owned\\x07 Busy"),
        (says(bad_servers.NOT_HTTP), "its answer is not HTTP (BadStatusLine)"),
        (drips(b"HTTP/1.1 200 OK\r\n"), "no complete answer within 0.2 s"),
    ],
    ids=["escapes", "no HTTP", "drips"],
)
def test_a_server_that_answers_wrongly_or_slowly_is_one_printable_line(
    answer: Any, why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.2)
    with answering(answer) as url:
        assert sent(f"{url}/services/secret") == [1.0, 2.0]
    assert caplog.messages == [f"--notify: no message to 127.0.0.1: {why}; the job goes on"]


def test_a_pipe_in_the_place_of_the_file_with_the_url_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "url")
    with pytest.raises(UsageError, match="it is a pipe"):
        webhook_url(f"file:{tmp_path}/url")
