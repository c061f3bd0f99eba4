"""How jobs and the doctor reach hosts over ssh. Pure."""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.hosts import name_error
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.launcher.agents.transports.child_process import Child

KNOWN_HOSTS: Final = "known_hosts"
"""The job's own file of hosts' keys, in its folder."""
_ASK: Final = "ask"
"""OpenSSH's default for unknown hosts. It asks on a terminal, which a job does not have."""
_AMBIGUOUS: Final = re.compile(r"[\s\"'\\$%]")
"""Characters with another meaning on a command line than in a path."""
_AUTHORITY: Final = "@cert-authority"
_OFFENDING: Final = re.compile(r"Offending .*key in (.+):\d+$")


@dataclass(frozen=True, slots=True)
class HostKeys:
    """The settings of the user's configuration for a host's key, as ``ssh -G`` prints them."""

    strict: str = ""
    """Its ``StrictHostKeyChecking``; "" where ssh did not answer."""
    files: tuple[str, ...] = ()
    """The user's own files of host keys."""
    shared_files: tuple[str, ...] = ()
    """Those of all users."""
    names: tuple[str, ...] = ()
    """The names of the host in them."""
    certified: bool = False
    """An authority in them signs its key: see :func:`is_certified`."""

    @property
    def open(self) -> bool:
        """The user has configured nothing, so the job decides about unknown hosts."""
        return self.strict == _ASK and not self.certified

    def options(self, known_hosts: Path | None) -> tuple[str, ...]:
        """Options of ssh for host keys; none if the user has configured them.

        A host without a known key is accepted. Its key is kept in ``known_hosts``, which is read before the user's own
        files; without ``known_hosts``, in the user's own files. A host with another key than the known one is refused.
        """
        if not self.open:
            return ()
        # The name counts: it may have several addresses, or an address that another host had.
        options = ("-oStrictHostKeyChecking=accept-new", "-oCheckHostIP=no")
        files = [] if known_hosts is None else [str(known_hosts), *self.files]
        plain = all(name.startswith("/") and not _AMBIGUOUS.search(name) for name in self.files)
        if not files or not plain or re.search(r'["\\$%]', files[0]):
            return options
        return (*options, f'-oUserKnownHostsFile="{files[0]}" {" ".join(self.files)}'.rstrip())


def read_host_keys(output: str) -> HostKeys:
    """Read what ``ssh -G`` has printed. Pure."""
    settings = dict(line.split(" ", 1) for line in output.splitlines() if " " in line)
    files, shared = (
        tuple(name for name in settings.get(key, "").split() if name != "none")
        for key in ("userknownhostsfile", "globalknownhostsfile")
    )
    names: tuple[str, ...] = ()
    if host := settings.get("hostkeyalias", settings.get("hostname", "")).lower():
        names = (host, f"[{host}]:{settings.get('port', '22')}")
    return HostKeys(settings.get("stricthostkeychecking", ""), files, shared, names)


def is_certified(lines: Iterable[str], names: Sequence[str]) -> bool:
    """Whether a file of hosts' keys has an authority that signs those of a host with one of these names. Pure.

    Such a host shows a certificate. For ssh, a key without one is that of an unknown host.
    """
    for line in lines:
        mark, *words = line.split(None, 2)[:2] or [""]
        patterns = words[0].lower().split(",") if mark == _AUTHORITY and words else []
        if any(_matches(name, patterns) for name in names):
            return True
    return False


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether ssh's pattern matches one of the names. A hashed pattern may match any name."""
    found = False
    for pattern in patterns:
        plain = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name, plain) or pattern.startswith("|"):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def shared_options(found: Sequence[HostKeys], known_hosts: Path) -> tuple[str, ...]:
    """Options for one command line that reaches several hosts; ``known_hosts`` has all known keys. Pure.

    If the user has decided about some of the hosts, unknown ones are refused.
    """
    if not any(keys.open for keys in found):
        return ()
    file = () if _AMBIGUOUS.search(str(known_hosts)) else (f"-oUserKnownHostsFile={known_hosts}",)
    everywhere = found[0].options(None) if all(keys.open for keys in found) else ()
    return (*everywhere, *file)


def refused_key(host: str, port: int | None, lines: Sequence[str]) -> str | None:
    """The remedy for a host key that ssh has refused, found in its last lines; None if it has refused none. Pure."""
    if not any("host key verification failed" in line.lower() for line in lines):
        return None
    name = host if port in (None, 22) else shlex.quote(f"[{host}]:{port}")
    files = [match[1] for line in lines if (match := _OFFENDING.search(line))]
    if not files:
        return (
            f"its key is not known, and your ssh configuration requires a known key: {ADD_HOST_KEY.format(host=host)}"
        )
    return f"its key is not the one that is known; if that change was intended: ssh-keygen -R {name} -f {files[0]}"


ADD_HOST_KEY: Final = (
    "add it to ~/.ssh/known_hosts, or set StrictHostKeyChecking accept-new for {host} in ~/.ssh/config"
)


@dataclass(frozen=True, slots=True)
class Ssh:
    """Options of ssh, as ``horovodrun`` takes them. ``directory`` is where commands run, on hosts that have it.

    ``known_hosts``: the job's own file of hosts' keys; None: the user's.
    """

    directory: Path
    port: int | None = None
    identity_file: str | None = None
    connect_timeout_s: int = 10
    known_hosts: Path | None = None

    def query_command(self, host: str) -> list[str]:
        """The command that prints the user's configuration for ``host``. Raises as :meth:`command` does."""
        return ["ssh", "-G", *self._options(), "--", _checked(host)]

    def command(self, host: str, words: Sequence[str], *, keys: Sequence[str] = ()) -> list[str]:
        """The command that runs ``words`` on ``host``; ``keys``: options for host keys.

        Raises ``ValueError`` for an unsafe host name.
        """
        return [
            "ssh",
            "-oBatchMode=yes",
            *keys,
            f"-oConnectTimeout={self.connect_timeout_s}",
            # A host that went away silently must not hold an ssh, and with it a slot, for hours.
            "-oServerAliveInterval=5",
            "-oServerAliveCountMax=3",
            "-oControlMaster=no",
            *self._options(),
            "--",
            _checked(host),
            # A host without this directory still runs commands given by absolute path, as with horovodrun.
            f"cd {shlex.quote(str(self.directory))} 2>/dev/null; exec {shlex.join(words)}",
        ]

    def _options(self) -> list[str]:
        return [
            *(["-p", str(self.port)] if self.port else []),
            *(["-i", self.identity_file] if self.identity_file else []),
        ]


def _checked(host: str) -> str:
    problem = name_error(host)
    if problem is not None:
        raise ValueError(problem)
    return host


# --- what the user's own configuration says


TIMEOUT_S: Final = 5.0
"""It takes milliseconds, unless the configuration has names looked up or programs run."""
MAX_CONCURRENT: Final = 8


async def host_keys(ssh: Ssh, host: str) -> HostKeys:
    """Ask for one host. Without an answer ssh's own defaults apply: an unknown host is refused."""
    lines: list[str] = []
    try:
        child = Child(
            ssh.query_command(host), b"", on_line=lambda stream, text: lines.append(text * (stream == "stdout"))
        )
    except OSError:
        return HostKeys()
    try:
        await asyncio.wait_for(asyncio.shield(child.code), TIMEOUT_S)
    except asyncio.TimeoutError:
        return HostKeys()
    finally:
        child.close()
        await child.killed()
    keys = read_host_keys("\n".join(lines))
    try:
        return await asyncio.wait_for(BackgroundCalls().call(lambda: with_authorities(keys)), TIMEOUT_S)
    except (OSError, asyncio.TimeoutError):
        return HostKeys()


def with_authorities(keys: HostKeys) -> HostKeys:
    """Add the authorities that sign host keys, read from its files. Blocks while files are slow."""
    certified = any(_has_authority(Path(name).expanduser(), keys) for name in (*keys.files, *keys.shared_files))
    return dataclasses.replace(keys, certified=certified)


def _has_authority(file: Path, keys: HostKeys) -> bool:
    try:
        if not file.is_file():  # for example a pipe, which never ends
            return False
        with file.open(encoding="utf-8", errors="replace") as lines:
            return is_certified(lines, keys.names)
    except (OSError, RuntimeError):  # ssh cannot read it, either
        return False


async def all_host_keys(ssh: Ssh, hosts: Iterable[str]) -> list[HostKeys]:
    """Ask for each of ``hosts``, a few at a time."""
    room = asyncio.Semaphore(MAX_CONCURRENT)

    async def ask(host: str) -> HostKeys:
        async with room:
            return await host_keys(ssh, host)

    return list(await asyncio.gather(*map(ask, hosts)))
