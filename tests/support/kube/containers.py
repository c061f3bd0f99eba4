"""A pod's container on a test host, with its own process numbers, shared memory, host name and process 1."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.support import marks, namespaces
from tests.support.nethosts import NetHost, NetHosts, which
from tests.support.waiting import wait_until

PORT: Final = 2222

_BOOT = """
set -e
test "$(readlink /proc/1/ns/pid)" = "$(readlink /proc/self/ns/pid)"
hostname "$1"
mount -t tmpfs -o mode=755 run /run
mkdir /run/sshd
mkdir -m 700 /run/home
mount -t tmpfs shm /dev/shm
shift
exec "$@"
"""

"""The ``test`` makes sure that /proc shows only processes of the container, so that no command there can signal others
of the machine.
"""

_LIKE_TINI = """shift; trap 'kill $!' TERM; "$@" & wait"""

_TAKES_S = 60.0


@dataclass(frozen=True)
class Main:
    """Process 1 of containers. ``port``: the port on which it listens when the container is ready; None if on none."""

    words: tuple[str, ...]
    port: int | None = None


def sshd(hosts: NetHosts) -> Main:
    """Return sshd as process 1, as the manifests have it."""
    program = which("sshd")
    assert program is not None
    return Main((program, "-D", "-e", "-f", str(_sshd_config(hosts))), PORT)


def command(words: Sequence[str]) -> Main:
    """Return the command of an image as process 1. If this machine has no tini, a shell replaces it, which also ends at
    SIGTERM.
    """
    if words[0] == "tini" and which("tini") is None:
        return Main(("sh", "-c", _LIKE_TINI, *words))
    return Main(tuple(words))


def _sshd_config(hosts: NetHosts) -> Path:
    """Write the settings of ``docker/sshd_config_trainer``, for root. The same key is the launcher's and each pod's."""
    path = hosts.directory / "sshd_config"
    if not path.exists():
        path.write_text(
            f"Port {PORT}\nPidFile none\nHostKey {hosts.identity}\nAuthorizedKeysFile {hosts.identity}.pub\n"
            "StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nAllowTcpForwarding no\n"
            "MaxStartups 64\nUsePAM no\nUseDNS no\nPermitRootLogin prohibit-password\nPrintMotd no\nLogLevel ERROR\n"
            "PermitUserRC no\nSetEnv HOME=/run/home XDG_RUNTIME_DIR=/run/home\n"
        )
    return path


class Container:
    """A container in the namespace of a host without an sshd. When its process 1 ends, all its processes end."""

    def __init__(self, host: NetHost, name: str, *, main: Main, log: Path) -> None:
        self.host = host
        self._main, self._log = main, log
        spaces = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words = ["ip", "netns", "exec", host.namespace, *spaces, "sh", "-c", _BOOT, "sh", name, *main.words]
        with self._log.open("ab") as output:
            self._outside = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._seen = psutil.Process(self._outside.pid)
        try:
            self.first = wait_until(self._first, what=f"process 1 of {name}", timeout=_TAKES_S)
            wait_until(self._ready, what=f"{main.words[0]} of {name}", timeout=_TAKES_S, show=self._log.read_text)
        except BaseException:
            self.kill()
            raise

    @property
    def ended(self) -> bool:
        return self._outside.poll() is not None

    def pids(self) -> list[int]:
        """Return the processes in the container, by the machine's numbers."""
        return [pid for pid in namespaces.processes(self.host.namespace) if _space(pid) == _space(self.first)]

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs ``argv`` in the container, with an image's environment, if started outside."""
        spaces = ["--net", "--uts", "--mount", "--pid"]
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        own = [f"PATH={path}", "HOME=/run/home", "XDG_RUNTIME_DIR=/run/home", f"{marks.MARK}={os.environ[marks.MARK]}"]
        return ["nsenter", "--target", str(self.first), *spaces, "--", "env", "-i", *own, *argv]

    def run(self, argv: Sequence[str], *, timeout: float) -> int | None:
        """Run a command in the container. Return its exit code, None if it took over ``timeout`` seconds and was
        killed.
        """
        with self._log.open("ab") as log:
            process = subprocess.Popen(self.command(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
            marks.kill([process.pid, *below])
            process.wait()
            return None

    def signal(self, number: int) -> None:
        """Send a signal to process 1."""
        if self.ended:  # another process may have its number now
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, number)

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; return whether the container has ended."""
        try:
            self._outside.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to process 1, which ends all processes."""
        if not self.ended and (first := self._first()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        if not self.wait(_TAKES_S):
            marks.kill([self._outside.pid])
            self._outside.wait()

    def _first(self) -> int | None:
        assert self._outside.poll() is None or hasattr(self, "first"), self._log.read_text()
        with contextlib.suppress(psutil.NoSuchProcess):  # also raised if another process has the number now
            return next((child.pid for child in self._seen.children()), None)
        return None

    def _ready(self) -> bool:
        assert not self.ended
        if self._main.port is None:
            return Path(f"/proc/{self.first}/cmdline").read_bytes().decode().split("\0")[:-1] == [*self._main.words]
        # The state LISTEN is 0A in the process's own /proc/net/tcp.
        table = Path(f"/proc/{self.first}/net/tcp").read_text().splitlines()[1:]
        listens = f":{self._main.port:04X}"
        return any(line.split()[1].endswith(listens) and line.split()[3] == "0A" for line in table)


def _space(pid: int) -> str:
    """Return what identifies the PID namespace of a process, "" if the process has gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
