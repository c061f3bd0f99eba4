"""Hosts that can be cut off: network namespaces with names, addresses, a bridge and an sshd each.

A namespace has no name of its own. It lasts as long as its first process. That runs under an agent, like all jobs here,
so nothing is left at any end of a benchmark. The launcher's host is the bridge itself; every interface is ``eth0``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import jobs
from benchmarks.model import BenchmarkError, Trial

NETWORK: Final = "10.78.0"
LAUNCHER: Final = "launcher"
INTERFACE: Final = "eth0"
NEEDED: Final = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
"""The required programs, and the Debian packages that have them."""
SEARCHED: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
BOOT_S: Final = 20.0

BOOT: Final = """
set -e
read -r pid rest </proc/self/stat
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/ssh" /etc/ssh
if [ -e /etc/nsswitch.conf ]; then mount --bind "$2/nsswitch.conf" /etc/nsswitch.conf; fi
ip link set lo up
"""
AS_LAUNCHER: Final = f"""
ip link add {INTERFACE} type bridge
ip addr add {NETWORK}.1/24 dev {INTERFACE}
ip link set {INTERFACE} up
echo "$pid" >"$2/$1.new"
mv "$2/$1.new" "$2/$1.pid"
exec sleep infinity
"""
AS_HOST: Final = """
mount -t proc proc /proc
mount -t tmpfs run /run
mkdir /run/sshd
mount --bind "$2/shadow" /etc/shadow
echo "$pid" >"$2/$1.new"
mv "$2/$1.new" "$2/$1.pid"
exec "$3" -D -e -f "$2/sshd_config"
"""


def missing() -> str | None:
    """Return what this machine lacks for such hosts, and how to get it; None if nothing."""
    if os.geteuid() != 0:
        return "needs root for network namespaces: sudo make bench"
    for program, package in NEEDED.items():
        if shutil.which(program, path=SEARCHED) is None:
            return f"needs {program}: apt-get install {package}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"], capture_output=True)
    if tried.returncode:
        return "needs CAP_SYS_ADMIN for namespaces; in a container: docker run --privileged"
    return None


class Hosts:
    """The hosts ``h1``, ``h2`` … and a launcher. See :func:`made`."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._addresses = {LAUNCHER: f"{NETWORK}.1", **{name: f"{NETWORK}.{10 + i}" for i, name in enumerate(names)}}
        self._ports = {name: f"p{i}" for i, name in enumerate(names)}
        self._pids: dict[str, int] = {}
        self._jobs: list[jobs.Job] = []

    def boot(self) -> None:
        """Start all hosts and their network. Raises :class:`BenchmarkError` if one does not start."""
        self._write()
        self._start(LAUNCHER, (), AS_LAUNCHER)
        for name, port in self._ports.items():
            self._start(name, ("--pid",), AS_HOST)
            pid, address = self._pids[name], f"{self._addresses[name]}/24"
            self._ip(LAUNCHER, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", str(pid))
            self._ip(LAUNCHER, "link", "set", port, "master", INTERFACE, "up")
            self._ip(name, "addr", "add", address, "dev", INTERFACE)
            self._ip(name, "link", "set", INTERFACE, "up")

    def cut(self, name: str) -> jobs.Instant:
        """Cut off a host: frames are lost in both directions, and no connection breaks. Return the moment just
        before."""
        moment = jobs.now()
        self._ip(LAUNCHER, "link", "set", self._ports[name], "nomaster")
        return moment

    def within(self, folder: Path) -> tuple[str, ...]:
        """Return the command that runs a command line on the launcher's host, in ``folder``."""
        there = ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder))
        return ("nsenter", f"--target={self._pids[LAUNCHER]}", "--net", "--uts", "--mount", "--", *there)

    def end(self) -> None:
        """End all hosts and all their processes."""
        for job in self._jobs:
            job.end()

    def _start(self, name: str, more: tuple[str, ...], script: str) -> None:
        own = self._folder / name
        own.mkdir()
        job = jobs.Job("ours", own)
        self._jobs.append(job)
        sshd = shutil.which("sshd", path=SEARCHED) or "sshd"
        spaces = ["unshare", "--net", "--mount", "--uts", *more, "--fork", "--kill-child"]
        job.launch([*spaces, "sh", "-c", BOOT + script, "sh", name, str(self._folder), sshd])
        pid = self._folder / f"{name}.pid"
        job.wait_for(f"host {name}", pid.exists, timeout=BOOT_S)
        self._pids[name] = int(pid.read_text())

    def _ip(self, host: str, *words: str) -> None:
        command = ["nsenter", f"--target={self._pids[host]}", "--net", "ip", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def _write(self) -> None:
        """Write the hosts' files for /etc, and their keys."""
        folder = self._folder
        (folder / "ssh").mkdir(parents=True)
        (folder / "home").mkdir()
        for key in ("identity", "host_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", str(folder / key)]
            subprocess.run(command, check=True)
        names = [f"{address} {name}" for name, address in self._addresses.items()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        # No name server can be reached, and a query would take time.
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
        # Without PAM, sshd rejects an account with the password "!", as root's in some images.
        (folder / "shadow").touch(0o600)
        (folder / "shadow").write_text("root:*:19000:0:99999:7:::\n")
        (folder / "ssh" / "ssh_config").write_text(
            f"Host *\n  IdentityFile {folder}/identity\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n"
            "  GlobalKnownHostsFile none\n  BatchMode yes\n  LogLevel ERROR\n"
        )
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/identity.pub\nStrictModes no\nUsePAM no\n"
            "UseDNS no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            f"PidFile none\nPrintMotd no\nLogLevel ERROR\nPermitUserRC no\nSetEnv HOME={folder}/home\n"
        )


@contextlib.contextmanager
def made(trial: Trial, names: Sequence[str]) -> Iterator[Hosts]:
    """Run hosts with these names, and a launcher, within the context."""
    hosts = Hosts(trial.folder / "net", names)
    try:
        hosts.boot()
        yield hosts
    finally:
        hosts.end()
