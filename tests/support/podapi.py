"""As much of a Kubernetes API server as ``kubectl exec`` needs: commands of its "pods" run on this machine.

It speaks the WebSocket protocol ``v5.channel.k8s.io``: the first byte of each message is a channel (0 to 2: the
command's standard streams, 3: how it ended, 255: the channel named next is closed).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PROTOCOL = "v5.channel.k8s.io"
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_RESOURCES = [
    {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get"]},
    {"name": "pods/exec", "singularName": "", "namespaced": True, "kind": "PodExecOptions", "verbs": ["get", "create"]},
]
_DISCOVERY = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.4", "platform": "linux/amd64"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": _RESOURCES},
}


class PodApi(ThreadingHTTPServer):
    """``pods``: names by namespace. ``forbidden``: who asks may look at pods, but not run anything in them."""

    daemon_threads = True

    def __init__(self, pods: dict[str, set[str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pods = pods
        self.forbidden = False
        self.connections: list[socket.socket] = []

    def cut(self) -> None:
        """Break the connections over which commands are carried."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def kubeconfig(self, path: Path, namespace: str) -> Path:
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}
        whole = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "u", "user": {}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(whole))
        return path


@contextlib.contextmanager
def serving(**pods: set[str]) -> Iterator[PodApi]:
    with PodApi(pods) as api:
        thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield api
        finally:
            api.cut()
            api.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: PodApi
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        match url.path.strip("/").split("/"):
            case ["api", "v1", "namespaces", namespace]:
                self._forbid("get", "namespaces", namespace, namespace)  # nobody has to be allowed that
            case ["api", "v1", "namespaces", namespace, "pods", pod]:
                self._pod(namespace, pod)
            case ["api", "v1", "namespaces", namespace, "pods", pod, "exec"]:
                self._exec(namespace, pod, parse_qs(url.query))
            case _ if url.path in _DISCOVERY:
                self._answer(200, _DISCOVERY[url.path])
            case _:
                self._fail(404, "NotFound", "the server could not find the requested resource")

    def do_POST(self) -> None:
        """The older protocol, which kubectl falls back to when it is refused."""
        match urlsplit(self.path).path.strip("/").split("/"):
            case ["api", "v1", "namespaces", namespace, "pods", pod, "exec"] if self.server.forbidden:
                self._forbid("create", "pods/exec", pod, namespace)
            case _:
                self._fail(405, "MethodNotAllowed", "this stand-in speaks WebSocket only")

    def _forbid(self, verb: str, resource: str, name: str, namespace: str) -> None:
        kind = resource.partition("/")[0]
        who = f'User "system:serviceaccount:{namespace}:launcher" cannot {verb} resource "{resource}"'
        message = f'{kind} "{name}" is forbidden: {who} in API group "" in the namespace "{namespace}"'
        self._fail(403, "Forbidden", message, name=name)

    def _pod(self, namespace: str, pod: str) -> None:
        if pod not in self.server.pods.get(namespace, set()):
            self._fail(404, "NotFound", f'pods "{pod}" not found', name=pod)
            return
        spec = {"containers": [{"name": "worker", "image": "x"}, {"name": "istio-proxy", "image": "y"}]}
        about = {"name": pod, "namespace": namespace}
        status = {"phase": "Running"}
        self._answer(200, {"kind": "Pod", "apiVersion": "v1", "metadata": about, "spec": spec, "status": status})

    def _fail(self, code: int, reason: str, message: str, *, name: str = "") -> None:
        details = {"name": name, "kind": "pods"}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
        self._answer(code, {**status, "reason": reason, "details": details, "code": code})

    def _answer(self, code: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _exec(self, namespace: str, pod: str, query: dict[str, list[str]]) -> None:
        if self.server.forbidden:
            self._forbid("get", "pods/exec", pod, namespace)
            return
        upgrade(self)
        self.server.connections.append(self.connection)
        assert query["stdin"] == query["stdout"] == query["stderr"] == ["true"]
        assert query["container"] == ["worker"]
        Session(self.connection, query["command"]).run()


def upgrade(handler: BaseHTTPRequestHandler) -> None:
    """Turn the connection of a request for it into one that carries a command's streams."""
    offered = [word.strip() for word in handler.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    assert PROTOCOL in offered, offered
    key = handler.headers["Sec-WebSocket-Key"].encode()
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode())
    handler.send_header("Sec-WebSocket-Protocol", PROTOCOL)
    handler.end_headers()
    handler.close_connection = True


class Session:
    """One command, and the connection that carries its streams. It outlives that one, as in a container."""

    def __init__(self, connection: socket.socket, command: list[str]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._input, to_input = os.pipe()
        self._to_input: int | None = to_input
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=self._input, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        os.close(self._input)

    def kill(self) -> None:
        """End the command and what it started, if it has not ended."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def run(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        threading.Thread(target=self._hear, daemon=True).start()
        outputs = ((1, self._process.stdout), (2, self._process.stderr))
        ways = [threading.Thread(target=self._pass_on, args=(each, source.fileno())) for each, source in outputs]
        for way in ways:
            way.start()
        for way in ways:
            way.join()
        code = self._process.wait()
        for _, source in outputs:
            source.close()
        with contextlib.suppress(OSError):
            self._say(3, json.dumps(_outcome(code if code >= 0 else 128 - code)).encode())
            self._send(8, struct.pack(">H", 1000))

    def _pass_on(self, channel: int, source: int) -> None:
        while data := os.read(source, 1 << 15):
            with contextlib.suppress(OSError):
                self._say(channel, data)

    def _say(self, channel: int, data: bytes) -> None:
        self._send(2, bytes([channel]) + data)

    def _send(self, opcode: int, data: bytes) -> None:
        size = bytes([len(data)]) if len(data) < 126 else struct.pack(">BH", 126, len(data))
        with self._lock:
            self._connection.sendall(bytes([0x80 | opcode]) + size + data)

    def _hear(self) -> None:
        """Take in what comes, to its end, which is the end of the command's input."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                opcode, data = self._frame()
                if opcode == 9:
                    self._send(10, data)
                elif opcode == 8 or data[:2] == b"\xff\x00":
                    break
                elif opcode == 2 and data[0] == 0:
                    os.write(self._to_input or -1, data[1:])
        os.close(self._to_input or -1)

    def _frame(self) -> tuple[int, bytes]:
        head = self._read(2)
        size = head[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
        mask = self._read(4)
        data = self._read(size)
        return head[0] & 0x0F, bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._connection.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def _outcome(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    message = f"command terminated with non-zero exit code: {code}"
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": causes}
