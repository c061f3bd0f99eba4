"""A pod's container on a test host: process numbers, shared memory and a name of its own, and a process 1."""

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

"""The first line: whoever signals what it sees in /proc must not see the machine's processes."""

_LIKE_TINI = """shift; trap 'kill $!' TERM; "$@" & wait"""

_TAKES_S = 60.0


@dataclass(frozen=True)
class Main:
    """Process 1 of containers. ``port``: on which it listens once they are ready, if on any."""

    words: tuple[str, ...]
    port: int | None = None


def sshd(hosts: NetHosts) -> Main:
    """As the manifests have it."""
    program = which("sshd")
    assert program is not None
    return Main((program, "-D", "-e", "-f", str(_sshd_config(hosts))), PORT)


def command(words: Sequence[str]) -> Main:
    """Of an image. Where this machine has no tini, a shell does what counts of it: it ends when it is told to."""
    if words[0] == "tini" and which("tini") is None:
        return Main(("sh", "-c", _LIKE_TINI, *words))
    return Main(tuple(words))


def _sshd_config(hosts: NetHosts) -> Path:
    """As ``docker/sshd_config_trainer`` has it, for root: one key lets the launcher in, and is every pod's own."""
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
    """Starts in the namespace of a host without an sshd. When its process 1 ends, so does everything in it."""

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
        """What runs in it, by the machine's numbers."""
        return [pid for pid in namespaces.processes(self.host.namespace) if _space(pid) == _space(self.first)]

    def command(self, argv: Sequence[str]) -> list[str]:
        """``argv`` as it is to be started from outside so that it runs in it, with an image's environment."""
        spaces = ["--net", "--uts", "--mount", "--pid"]
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        own = [f"PATH={path}", "HOME=/run/home", "XDG_RUNTIME_DIR=/run/home", f"{marks.MARK}={os.environ[marks.MARK]}"]
        return ["nsenter", "--target", str(self.first), *spaces, "--", "env", "-i", *own, *argv]

    def run(self, argv: Sequence[str], *, timeout: float) -> int | None:
        """Run a command in it; its exit code, None if it took too long and was killed."""
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
        """To its process 1."""
        if self.ended:  # its number may be somebody else's
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, number)

    def wait(self, timeout: float) -> bool:
        """Whether it has ended within so many seconds."""
        try:
            self._outside.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to process 1, and so to all."""
        if not self.ended and (first := self._first()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        if not self.wait(_TAKES_S):
            marks.kill([self._outside.pid])
            self._outside.wait()

    def _first(self) -> int | None:
        assert self._outside.poll() is None or hasattr(self, "first"), self._log.read_text()
        with contextlib.suppress(psutil.NoSuchProcess):  # also if the number is another process's meanwhile
            return next((child.pid for child in self._seen.children()), None)
        return None

    def _ready(self) -> bool:
        assert not self.ended
        if self._main.port is None:
            return Path(f"/proc/{self.first}/cmdline").read_bytes().decode().split("\0")[:-1] == [*self._main.words]
        # In state LISTEN (0A), as its own /proc/net/tcp shows it.
        table = Path(f"/proc/{self.first}/net/tcp").read_text().splitlines()[1:]
        listens = f":{self._main.port:04X}"
        return any(line.split()[1].endswith(listens) and line.split()[3] == "0A" for line in table)


def _space(pid: int) -> str:
    """Which processes see each other."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
