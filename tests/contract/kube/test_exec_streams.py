"""Commands in pods, message by message, in both protocols; ours only, since it takes a kubelet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
import websocket
from websocket import ABNF

from tests.support.kube import bodies
from tests.support.kube.execstreams import CLOSE, ERROR, STDIN, STDOUT, V4, V5
from tests.support.kube.fixtures import kube as kube  # a fixture
from tests.support.kube.server import KubeServer


@contextmanager
def opened(server: KubeServer, protocol: str, *command: str, container: str = "worker") -> Iterator[Any]:
    words = [("command", word) for word in command]
    streams = [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
    query = urlencode([*words, *streams, *([("container", container)] if container else [])])
    made = websocket.create_connection(
        f"ws://127.0.0.1:{server.port}/api/v1/namespaces/default/pods/w-0/exec?{query}",
        header=[f"Authorization: Bearer {server.token}"],
        subprotocols=[protocol],
        timeout=60,
        http_no_proxy=["*"],
    )
    try:
        yield made
    finally:
        made.shutdown()


def said(made: Any) -> tuple[int, bytes]:
    """The next message: its channel and content."""
    opcode, data = made.recv_data()
    assert opcode == ABNF.OPCODE_BINARY
    return data[0], data[1:]


@pytest.mark.parametrize("protocol", [V5, V4])
def test_an_empty_message_comes_first_and_the_end_last(kube: KubeServer, protocol: str) -> None:
    kube.put("pods", bodies.pod("w-0"))
    with opened(kube, protocol, "sh", "-c", "read line; echo $line; exit 3") as made:
        assert made.subprotocol == protocol
        assert said(made) == (STDOUT, b"")
        made.send_binary(bytes([STDIN]) + b"hello\n")
        assert said(made) == (STDOUT, b"hello\n")
        channel, status = said(made)
        assert channel == ERROR
        assert json.loads(status)["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
        assert made.recv_data(control_frame=True)[0] == ABNF.OPCODE_CLOSE


@pytest.mark.parametrize("protocol", [V5, V4])
def test_only_the_newer_protocol_can_end_the_input_alone(kube: KubeServer, protocol: str) -> None:
    kube.put("pods", bodies.pod("w-0"))
    with opened(kube, protocol, "cat") as made:
        assert said(made) == (STDOUT, b"")
        made.send_binary(bytes([CLOSE, STDIN]))
        if protocol == V5:
            assert said(made) == (ERROR, b'{"metadata": {}, "status": "Success"}')
        else:
            made.send_binary(bytes([STDIN]) + b"still open")
            assert said(made) == (STDOUT, b"still open")


def test_pings_are_answered_and_messages_without_content_do_no_harm(kube: KubeServer) -> None:
    kube.put("pods", bodies.pod("w-0"))
    with opened(kube, V5, "cat") as made:
        made.send_binary(bytes([STDIN]))
        made.ping(b"there?")
        assert said(made) == (STDOUT, b"")
        assert made.recv_data(control_frame=True) == (ABNF.OPCODE_PONG, b"there?")
        made.send_binary(bytes([STDIN]) + b"yes")
        assert said(made) == (STDOUT, b"yes")


@pytest.mark.parametrize(
    ("container", "why"),
    [
        ("", "a container name must be specified for pod w-0, choose one of: [a b]"),
        ("c", "container c is not valid for pod w-0"),
    ],
)
def test_which_of_several_containers_has_to_be_said(kube: KubeServer, container: str, why: str) -> None:
    kube.put("pods", bodies.pod("w-0", containers=[{"name": "a"}, {"name": "b"}]))
    with (
        pytest.raises(websocket.WebSocketBadStatusException) as refused,
        opened(kube, V5, "true", container=container),
    ):
        pass
    assert refused.value.status_code == 400
    assert json.loads(refused.value.resp_body or b"")["message"] == why
    assert kube.execs.commands == []
