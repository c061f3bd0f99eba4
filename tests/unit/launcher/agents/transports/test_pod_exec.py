"""A command in a pod, as a child process, with streams that a test controls."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.pods import ERROR, STDERR, STDOUT, exec_path
from hvd_elastic_ext.launcher.agents.transports.pod_exec import EXIT_CODE_UNKNOWN, KILLED, Exec, Pod, pod_of, words_in

SECONDS = 20
SUCCESS = (ERROR, b'{"status":"Success"}')


class Scripted:
    """A stream that returns the items of ``says``: a message, an error to raise, or None for the end."""

    def __init__(self) -> None:
        self.says: Queue[tuple[int, bytes] | Exception | None] = Queue()
        self.asked = threading.Semaphore(0)
        self.sent = b""
        self.closed = threading.Event()

    def send(self, data: bytes) -> None:
        self.sent += data

    def receive(self) -> Iterator[tuple[int, bytes]]:
        while True:
            self.asked.release()
            word = self.says.get()
            if isinstance(word, Exception):
                raise word
            if word is None:
                return
            yield word

    def cut(self) -> None:
        self.says.put(ApiError(Reason.CUT, "cut"))

    def close(self) -> None:
        self.closed.set()


class Heard:
    """An :class:`Exec` of this stream, and what it passed on."""

    def __init__(self, stream: Scripted, *, start: Callable[[], Scripted] | None = None) -> None:
        self.lines: list[tuple[str, str]] = []
        self.exec = Exec(start or (lambda: stream), b"x\n", on_line=lambda *line: self.lines.append(line))


async def until(event: threading.Event | threading.Semaphore) -> None:
    wait = event.wait if isinstance(event, threading.Event) else event.acquire
    assert await asyncio.to_thread(wait, timeout=SECONDS)


async def test_lines_come_whole_and_in_order_and_before_the_exit_code() -> None:
    stream = Scripted()
    for word in ((STDOUT, b"a"), (STDOUT, b"b\nc"), (STDERR, b"e\n"), (4, b"odd"), (STDOUT, b"\nlast"), SUCCESS):
        stream.says.put(word)
    heard = Heard(stream)
    assert await heard.exec.code == 0
    assert heard.lines == [("stdout", "ab"), ("stderr", "e"), ("stdout", "c"), ("stdout", "last")]
    assert heard.exec.why == ""
    assert stream.sent == b"x\n"
    await until(stream.closed)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (None, "the connection to the pod was lost"),
        (
            ApiError(Reason.CUT, "the connection to the pod was lost: reset"),
            "the connection to the pod was lost: reset",
        ),
        ((ERROR, b'{"status":"Failure","message":"no container"}'), "no container"),
    ],
)
async def test_an_end_that_was_not_told_is_a_loss_with_a_reason(word: tuple[int, bytes] | None, why: str) -> None:
    stream = Scripted()
    stream.says.put((STDOUT, b"half a li"))
    stream.says.put(word)
    heard = Heard(stream)
    assert await heard.exec.code == EXIT_CODE_UNKNOWN
    assert heard.exec.why == why
    assert heard.lines == [("stdout", "half a li")]
    await until(stream.closed)


async def test_what_cannot_be_started_says_why() -> None:
    def start() -> Scripted:
        raise ApiError.of_status({}, code=403)

    heard = Heard(Scripted(), start=start)
    assert (await heard.exec.code, heard.exec.why) == (EXIT_CODE_UNKNOWN, "the API server says 403")


async def test_a_thread_that_cannot_be_started_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(OSError, match="no thread can be started") as told:
            Heard(Scripted())
    assert told.value.errno == errno.EAGAIN


async def test_no_more_is_read_while_the_loop_has_not_taken_what_was() -> None:
    stream = Scripted()
    heard = Heard(stream)
    await until(stream.asked)
    stream.says.put((STDOUT, b"one\n"))
    assert not stream.asked.acquire(timeout=0.2)  # the loop is blocked meanwhile
    assert heard.lines == []
    await until(stream.asked)
    assert heard.lines == [("stdout", "one")]
    stream.says.put(SUCCESS)
    await heard.exec.code


@pytest.mark.parametrize("end", ["kill", "close"])
async def test_who_is_ended_is_ended_at_once_and_heard_no_more(end: str) -> None:
    stream = Scripted()
    heard = Heard(stream)
    await until(stream.asked)
    getattr(heard.exec, end)()
    assert heard.exec.code.result() == KILLED
    stream.says.put((STDOUT, b"late\n"))
    await until(stream.closed)
    await asyncio.sleep(0)
    assert heard.lines == []
    getattr(heard.exec, end)()


async def test_who_is_ended_on_its_way_never_gets_its_line() -> None:
    stream, let_in = Scripted(), threading.Event()

    def start() -> Scripted:
        assert let_in.wait(SECONDS)
        return stream

    heard = Heard(stream, start=start)
    heard.exec.kill()
    assert await heard.exec.code == KILLED
    let_in.set()
    await until(stream.closed)
    assert stream.sent == b""


async def test_a_defect_is_an_end_too(caplog: pytest.LogCaptureFixture) -> None:
    stream = Scripted()
    stream.says.put(ZeroDivisionError())
    heard = Heard(stream)
    with caplog.at_level(logging.CRITICAL, logger="hvd_elastic_ext.launcher.agents.transports.pod_exec"):
        assert (await heard.exec.code, heard.exec.why) == (EXIT_CODE_UNKNOWN, "a defect: ZeroDivisionError")
    await until(stream.closed)


def test_a_loop_that_is_gone_leaves_no_thread_behind() -> None:
    stream = Scripted()

    async def act() -> None:
        Heard(stream)
        await until(stream.asked)

    asyncio.run(act())
    stream.says.put((STDOUT, b"nobody hears\n"))
    stream.says.put(SUCCESS)
    assert stream.closed.wait(SECONDS)


# --- which pod ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "pod"),
    [
        ("job-worker-0", Pod("job-worker-0")),
        ("job-worker-0.job.ns1.svc", Pod("job-worker-0", "ns1")),
        ("job-worker-0.job.ns1.svc.cluster.local", Pod("job-worker-0", "ns1")),
        ("job-worker-0.job", Pod("job-worker-0")),
        ("3d-job", Pod("3d-job")),
    ],
)
def test_a_host_name_means_the_pod_that_it_begins_with(host: str, pod: Pod) -> None:
    assert pod_of(host) == pod


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("10.0.0.7", "is an address; with --rsh pod hosts have names of pods"),
        ("Job-0", "'Job-0' is not the name of a pod"),
        ("job_0", "'job_0' is not the name of a pod"),
        ("a.b.N.svc", "'N' is not the name of a pod or namespace"),
        ("../secrets", "is not a valid name"),
        ("a?container=x", "is not a valid name"),
        ("a b", "white space"),
        ("", "is empty"),
    ],
)
def test_a_name_of_no_pod_is_refused_in_one_line(host: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refused:
        pod_of(host)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=40) | st.from_regex(r"[a-z0-9./?%-]{1,40}", fullmatch=True))
def test_no_host_name_asks_for_anything_but_a_command_in_a_pod(host: str) -> None:
    try:
        pod = pod_of(host)
    except ValueError:
        return
    url = urlsplit(exec_path(pod.namespace or "default", pod.name, "worker", ["true"]))
    assert url.path.split("/") == [
        *("", "api", "v1", "namespaces", pod.namespace or "default", "pods", pod.name, "exec"),
    ]
    assert parse_qs(url.query)["command"] == ["true"]
    assert not url.fragment


def test_a_directory_may_have_any_name() -> None:
    command = words_in(Path("/my 'job'; true"), ["python", "-c", "x"])
    assert command[:2] == ["sh", "-c"]
    assert command[4:] == ["/my 'job'; true", "python", "-c", "x"]
