"""Real hosts on one machine: network namespaces with names, addresses, a switch between them and an sshd in each.

::

    def test_a_job_survives_a_pulled_cable(nethosts):
        hosts = nethosts(2)                        # h1, h2, and a launcher
        with hosts.launcher.popen(["horovodrun", "--hosts", "h1:1,h2:1", *hosts.horovodrun_options, ...]) as job:
            job.wait_for("step 3")
            hosts["h2"].cut()                      # silence, as from a pulled cable; restore() puts it back

Each host is a network namespace (its interface is called ``eth0``) and a mount
and UTS namespace: it has its own hostname, ``/etc/hosts``, ``/etc/ssh`` and
``/run``. Files and process numbers are the machine's. All are wired to a bridge
in a namespace of its own, so the machine's own network is not touched and
nothing outside can be reached. Everything is removed when the test ends, or
when the next session starts if this one was killed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support import marks, namespaces
from tests.support.namespaces import ETC, ip
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

NETWORK = "10.77.0"
MOST_HOSTS = 64
LAUNCHER = "launcher"

_networks = itertools.count(1)

_BOOT = """
set -e
hostname "$1"
mount -t tmpfs -o mode=755 run /run
mkdir /run/sshd
echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null || true
echo booted
exec sleep infinity
"""
"""The first process of a host: it holds the host's mount and UTS namespaces."""


@functools.cache
def unavailable() -> str | None:
    """Return why this machine cannot have such hosts, and the remedy; None if it can."""
    needed = {
        "ip": "iproute2",
        "unshare": "util-linux",
        "nsenter": "util-linux",
        "ssh": "openssh-client",
        "sshd": "openssh-server",
    }
    if os.geteuid() != 0:
        return "needs root for network namespaces: run the tests as root, for example `sudo make test`"
    for program, package in needed.items():
        if which(program) is None:
            return f"needs {program}: apt-get install {package}"
    name = f"{marks.PREFIX}{marks.owner()}-probe"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "br0", "type", "bridge")
        ip("-n", name, "link", "add", "p0", "type", "veth", "peer", "name", "p1")
    except AssertionError as error:
        return (
            f"needs root for network namespaces with CAP_SYS_ADMIN, in a container `docker run --privileged`: {error}"
        )
    finally:
        namespaces.remove([name])
    return None


def which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _made(folder: Path) -> bool:
    """Make a folder and its parents; False if another session removed an empty one of them meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:
        return False
    return True


class NetHost:
    """One host. ``name`` and ``address`` are known to all hosts of its network."""

    def __init__(self, network: NetHosts, name: str, *, number: int) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.namespace = f"{network.prefix}{name}"
        self._network = network
        self._port = f"p{number}"
        self._dir = network.directory / name
        self._init: subprocess.Popen[str] | None = None
        self._sshd: subprocess.Popen[bytes] | None = None
        self._dir.mkdir()
        ip("netns", "add", self.namespace)
        self._serves = network.sshd and name != LAUNCHER
        self.aliases: dict[str, str] = {}
        self._write_etc()
        self.boot()

    def __repr__(self) -> str:
        return f"<host {self.name} {self.address}>"

    # --- life ---------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start the host's first process, its network and its sshd; also after :meth:`kill`."""
        command = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", _BOOT, "sh", self.name]
        self._init = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self._init.stdout is not None
        assert self._init.stdout.readline() == "booted\n", f"{self.name} did not start; see stderr"
        if "eth0" not in ip("-n", self.namespace, "-br", "link"):
            self._wire()
        if self._serves:
            self._start_sshd()

    def kill(self) -> None:
        """Kill all processes of the host, sshd too, as a power cut does. Its link goes down, too."""
        ip("-n", self._network.bridge, "link", "set", self._port, "nomaster")
        namespaces.kill_everything(self.namespace)
        self._reap()

    def reboot(self) -> None:
        """:meth:`kill`, then :meth:`boot` and :meth:`restore`."""
        self.kill()
        self.boot()
        self.restore()

    def close(self) -> None:
        """Remove the host and all its processes."""
        namespaces.remove([self.namespace])
        self._reap()

    def pids(self) -> list[int]:
        """Return the processes of the host, with its first one and sshd."""
        return namespaces.processes(self.namespace)

    # --- faults -------------------------------------------------------------------------------

    def cut(self) -> None:
        """Disconnect the host at the switch: frames are lost in both directions, and no connection breaks."""
        ip("-n", self._network.bridge, "link", "set", self._port, "nomaster")

    def restore(self) -> None:
        """Connect the host again."""
        ip("-n", self._network.bridge, "link", "set", self._port, "master", "br0")

    def configure_ssh(self, text: str) -> None:
        """Write ``text`` as this host's own /etc/ssh/ssh_config."""
        (ETC / self.namespace / "ssh" / "ssh_config").write_text(text)

    def resolve_own_name_to(self, address: str) -> None:
        """Let this host's /etc/hosts resolve its own name to ``address``, as Debian's 127.0.1.1 does."""
        self._write_hosts_file({self.name: address})

    def impersonate(self, heard: Path) -> None:
        """Start another sshd on this host, with another key. It appends the first line of each input to ``heard``."""
        assert self._sshd is not None
        self._sshd.terminate()
        self._sshd.wait(60)
        self._network.new_key(self._dir / "false_key")
        config = self._dir / "sshd_config"
        true = config.read_text().replace("/host_key", "/false_key")
        config.write_text(f"{true}ForceCommand head -n 1 >> {heard}\n")
        self._start_sshd()

    # --- commands -----------------------------------------------------------------------------

    def command(
        self, argv: Sequence[str | os.PathLike[str]], *, cwd: str | os.PathLike[str] | None = None
    ) -> list[str]:
        """Return the command that runs ``argv`` on this host when it is started outside."""
        assert self._init is not None, f"{self.name} is not running"
        there = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", os.fspath(cwd or Path.cwd())]
        enter = ["nsenter", "--target", str(self._init.pid), "--net", "--uts", "--mount", "--", *there]
        return [*enter, *map(os.fspath, argv)]

    @contextlib.contextmanager
    def popen(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> Iterator[RunningProcess]:
        """Run ``argv`` on this host; see :func:`tests.support.processes.run_process`."""
        with run_process(self.command(argv, cwd=cwd), env=env) as process:
            yield process

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        timeout: float = 30.0,
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> RunningProcess:
        """Run ``argv`` on this host to its end. Return the process, with exit code and output."""
        with self.popen(argv, env=env, cwd=cwd) as process:
            process.wait(timeout)
        return process

    # --- how it is made -----------------------------------------------------------------------

    def _wire(self) -> None:
        bridge, inside = self._network.bridge, ["-n", self.namespace]
        ip("-n", bridge, "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        ip("-n", bridge, "link", "set", self._port, "master", "br0", "up")
        ip(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip(*inside, "link", "set", "lo", "up")
        ip(*inside, "link", "set", "eth0", "up")

    def _write_etc(self) -> None:
        """Write the files that ``ip netns exec`` mounts over this host's /etc."""
        etc = ETC / self.namespace
        wait_until(functools.partial(_made, etc / "ssh"), what=f"{etc}")
        self._write_hosts_file({})
        self.configure_ssh(self._network.ssh_config)
        if Path("/etc/nsswitch.conf").exists():
            (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
        if Path("/etc/shadow").exists():
            # Without PAM, sshd rejects an account with the password "!", as root's in some images.
            (etc / "shadow").touch(0o600)
            (etc / "shadow").write_text("root:*:19000:0:99999:7:::\n")

    def _write_hosts_file(self, changes: Mapping[str, str]) -> None:
        # In place: the file is mounted, and a new file of the same name would not be seen. It is truncated only after
        # the write, so that readers always find the unchanged lines.
        names = {**self._network.addresses, **self._network.aliases, **self.aliases, **changes}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        path = ETC / self.namespace / "hosts"
        path.touch()
        with path.open("rb+", buffering=0) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.truncate()

    def _start_sshd(self) -> None:
        config = self._dir / "sshd_config"
        if not config.exists():
            key = self._network.new_key(self._dir / "host_key")
            self._network.know(f"{self.name},{self.address}", key)
            # A home of its own: the start-up files of the user's shell are slow, may wait for locks, and
            # leave locks behind when a test kills the shell.
            home = self._dir / "home"
            home.mkdir()
            tested = os.environ.get("PYTHONPATH")  # hosts run the same tree as the launcher
            path = f' "PYTHONPATH={tested}"' if tested else ""
            config.write_text(
                f"Port 22\nHostKey {self._dir}/host_key\nAuthorizedKeysFile {self._network.identity}.pub\n"
                "StrictModes no\nUsePAM no\nUseDNS no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
                "PermitRootLogin prohibit-password\nPidFile none\nPrintMotd no\nLogLevel ERROR\n"
                f"PermitUserRC no\nSetEnv HOME={home}{path}\n"
            )
        sshd = which("sshd")
        assert sshd is not None
        with (self._dir / "sshd.log").open("ab") as log:
            self._sshd = subprocess.Popen(
                self.command([sshd, "-D", "-e", "-f", config]), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._listens, what=f"sshd on {self.name}", show=(self._dir / "sshd.log").read_text)

    def _listens(self) -> bool:
        # Port 22 in state LISTEN (0A), as the host's own /proc/net/tcp shows it.
        assert self._init is not None
        table = Path(f"/proc/{self._init.pid}/net/tcp").read_text()
        return any(line.split()[1].endswith(":0016") and line.split()[3] == "0A" for line in table.splitlines()[1:])

    def _reap(self) -> None:
        for process in (self._sshd, self._init):
            if process is not None:
                process.wait(60)
                if process.stdout is not None:
                    process.stdout.close()
        self._sshd = self._init = None


class NetHosts:
    """Hosts ``h1``, ``h2``, … and a ``launcher`` on one network of their own; without ``sshd`` bare machines."""

    def __init__(self, count: int, *, sshd: bool = True) -> None:
        self.sshd = sshd
        self.prefix = f"{marks.PREFIX}{marks.owner()}-{next(_networks)}-"
        self.bridge = f"{self.prefix}bridge"
        self.directory = Path(tempfile.mkdtemp(prefix=self.prefix))
        numbers = {LAUNCHER: 1, **{f"h{i}": 10 + i for i in range(1, MOST_HOSTS + 1)}}
        self.addresses = {name: f"{NETWORK}.{number}" for name, number in numbers.items()}
        self.aliases: dict[str, str] = {}
        self.identity = self.directory / "identity"
        self._known = self.directory / "known_hosts"
        self.hosts: list[NetHost] = []
        try:
            self._build(count)
        except BaseException:
            self.close()
            raise

    def _build(self, count: int) -> None:
        self._known.touch()
        self.new_key(self.identity)
        ip("netns", "add", self.bridge)
        ip("-n", self.bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", self.bridge, "link", "set", "br0", "up")
        self.launcher = NetHost(self, LAUNCHER, number=1)
        for _ in range(count):
            self.add_host()

    def __iter__(self) -> Iterator[NetHost]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    def __getitem__(self, which: int | str) -> NetHost:
        """Return a host by its position or its name."""
        return self.hosts[which] if isinstance(which, int) else next(host for host in self if host.name == which)

    def add_host(self) -> NetHost:
        """Add one host. All others can reach it by its name."""
        number = len(self.hosts) + 1
        host = NetHost(self, f"h{number}", number=10 + number)
        self.hosts.append(host)
        return host

    @property
    def names(self) -> list[str]:
        return [host.name for host in self]

    def call(self, aliases: Mapping[str, str]) -> None:
        """Replace the additional names and their addresses, which all hosts know. The names in a host's own ``aliases``
        are known to that host only, from the next call on."""
        self.aliases = dict(aliases)
        for host in [self.launcher, *self.hosts]:
            host._write_hosts_file({})

    @property
    def ssh_config(self) -> str:
        """The /etc/ssh/ssh_config of every host: plain ``ssh h1`` works, and no file of the user is written."""
        return (
            f"Host *\n  IdentityFile {self.identity}\n  IdentitiesOnly yes\n  UserKnownHostsFile {self._known}\n"
            "  GlobalKnownHostsFile none\n  StrictHostKeyChecking accept-new\n  BatchMode yes\n  LogLevel ERROR\n"
        )

    @property
    def horovodrun_options(self) -> list[str]:
        """Options of ``horovodrun`` and ``hvd-elastic run`` for these hosts."""
        return ["--network-interfaces", "eth0", "--ssh-identity-file", str(self.identity)]

    def new_key(self, path: Path) -> str:
        """Make a key pair. Return the public key."""
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
        return path.with_suffix(".pub").read_text().strip()

    def know(self, names: str, public_key: str) -> None:
        with self._known.open("a") as file:
            file.write(f"{names} {public_key}\n")

    def close(self) -> None:
        """Remove all hosts with their processes, the bridge and the keys. May be repeated."""
        for host in [*self.hosts, *([self.launcher] if hasattr(self, "launcher") else [])]:
            host.close()
        namespaces.remove(namespaces.named(self.prefix))
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture
def nethosts() -> Iterator[Callable[[int], NetHosts]]:
    """``nethosts(3)`` makes three hosts and a launcher, see :mod:`tests.support.nethosts`; the test's end removes
    them."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:

        def make(count: int, *, sshd: bool = True) -> NetHosts:
            hosts = NetHosts(count, sshd=sshd)
            stack.callback(hosts.close)
            return hosts

        yield make
