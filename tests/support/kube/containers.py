"""A pod's container on a test host: process numbers, shared memory and a name of its own, and sshd as process 1."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
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
exec "$2" -D -e -f "$3"
"""

"""The first line: whoever signals what it sees in /proc must not see the machine's processes."""

_TAKES_S = 60.0


def sshd_config(hosts: NetHosts) -> Path:
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

    def __init__(self, host: NetHost, name: str, *, config: Path) -> None:
        self.host = host
        self._log = config.with_name(f"{name}.log")
        sshd = which("sshd")
        assert sshd is not None
        spaces = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["ip", "netns", "exec", host.namespace, *spaces, "sh", "-c", _BOOT, "sh", name, sshd, str(config)]
        with self._log.open("ab") as log:
            self._outside = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._seen = psutil.Process(self._outside.pid)
        try:
            self.first = wait_until(self._first, what=f"process 1 of {name}", timeout=_TAKES_S)
            wait_until(self._listens, what=f"sshd of {name}", timeout=_TAKES_S, show=self._log.read_text)
        except BaseException:
            self.kill()
            raise

    @property
    def ended(self) -> bool:
        return self._outside.poll() is not None

    def pids(self) -> list[int]:
        """What runs in it, by the machine's numbers."""
        return [pid for pid in namespaces.processes(self.host.namespace) if _space(pid) == _space(self.first)]

    def run(self, argv: Sequence[str], *, timeout: float) -> int | None:
        """Run a command in it; its exit code, None if it took too long and was killed."""
        spaces = ["--net", "--uts", "--mount", "--pid"]
        command = ["nsenter", "--target", str(self.first), *spaces, "--", *argv]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
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

    def _listens(self) -> bool:
        # In state LISTEN (0A), as its own /proc/net/tcp shows it.
        assert not self.ended
        table = Path(f"/proc/{self.first}/net/tcp").read_text().splitlines()[1:]
        return any(line.split()[1].endswith(f":{PORT:04X}") and line.split()[3] == "0A" for line in table)


def _space(pid: int) -> str:
    """Which processes see each other."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
