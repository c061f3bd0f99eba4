"""What ``hvd-elastic run`` was asked to do: frozen, complete, checked."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.engines import DEFAULT, ENGINES, RESTARTING
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS, HostSet
from hvd_elastic_ext.core.notice_sources import AUTO, CLOUDS
from hvd_elastic_ext.launcher.driver.options import JobOptions
from hvd_elastic_ext.launcher.sleep.release_policy import ReleaseLimits

LOOPBACK: Final = "127.0.0.1"
_HIGHEST_PORT: Final = 65535
GRACE_S = 5.0
"""Seconds a training process has between SIGTERM and SIGKILL; Horovod's own."""
MAX_TIME_S = 1e6
"""Longest time that agents accept: they refuse an order with a longer one, and the job would wait for them."""
MAX_COOLDOWN_S = 3600
"""Longest cooldown that Horovod accepts."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where hosts come from; exactly one is set. See :mod:`hvd_elastic_ext.launcher.sources.hosts`.

    ``discovery_user``: the number of the user who may listen at ``discovery_url``, if that is another user.
    """

    hosts_file: Path | None = None
    discovery_url: str | None = None
    script: str | None = None
    hosts: HostSet | None = None
    discovery_user: int | None = None

    def __post_init__(self) -> None:
        given = [s for s in (self.hosts_file, self.discovery_url, self.script, self.hosts) if s is not None]
        if len(given) != 1:
            raise UsageError(
                f"{len(given)} sources of hosts were given; give exactly one of --hosts-file, --discovery, "
                "--host-discovery-script, --hosts or --hostfile"
            )


class ListenAddress(NamedTuple):
    """``host``: an address of this machine. ``port``: 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen_address(text: str, *, where: str = "--metrics") -> ListenAddress:
    """Read ``[HOST:]PORT``; without a host it is this machine only. Raises :class:`UsageError`, one line."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not (port.isascii() and port.isdigit() and int(port) <= _HIGHEST_PORT):
        raise UsageError(f"{where} {text!r}: write [HOST:]PORT; 9464 for this machine only, 0.0.0.0:9464 for all")
    return ListenAddress(host, int(port))


def listen_address_of_hosts(text: str, *, where: str = "--agent-metrics") -> ListenAddress:
    """The same for every host. A name is refused: it may mean another address there, and a look-up takes time."""
    found = listen_address(text, where=where)
    try:
        ipaddress.ip_address(found.host)
    except ValueError:
        raise UsageError(f"{where} {text!r}: write an address, such as 0.0.0.0:9465 for all; not a name") from None
    return found


CHECKPOINTS = "checkpoints"
"""The folder of checkpoints below the job's, unless ``--checkpoint-dir`` names another one."""
OUTPUT = "output"
"""The folder of processes' output below the job's, where a dashboard is served and no other one is named."""
NO_CLOUD = "none"
NOTICES_FROM = (NO_CLOUD, AUTO, *CLOUDS)
"""Values of ``--notices-from``: clouds that may tell hosts that they are taken back."""


@dataclass(frozen=True, slots=True)
class CloudNotices:
    """The cloud whose metadata service each host asks whether it is taken back.

    ``url``: the address of that service; None: the usual one, or that of the host's own environment. Raises
    :class:`UsageError`.
    """

    source: str = NO_CLOUD
    url: str | None = None

    def __post_init__(self) -> None:
        if self.source not in NOTICES_FROM:
            raise UsageError(f"--notices-from {self.source!r} is not one of {', '.join(NOTICES_FROM)}")
        if self.url is not None and not re.fullmatch(r"http://[^\s/?#@]+(/[^\s?#]*)?", self.url):
            raise UsageError(f"--metadata-url {self.url!r} is not an address; write it as http://host:port")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A whole job. Raises :class:`UsageError`, one line, for what cannot work.

    ``options`` holds what decisions read, as they read it; the other fields are for the launcher itself. Times are in
    seconds. ``None``: off, or the default of what uses it.
    """

    command: tuple[str, ...]
    sources: Sources
    options: JobOptions
    engine_note: str = ""
    """Why the engine is not the one that was named; empty if it is."""
    default_slots: int | None = None
    """Slots of a host that is listed without a number; None: 1."""
    interfaces: tuple[str, ...] = ()
    rsh: str | None = None
    """How hosts are reached; None: this machine directly, others by ssh."""
    code: Path | None = None
    """A folder with files that must be the same on the hosts as on this machine."""
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timestamps: bool = False
    """Whether each line of output begins with the time."""
    log_level: int = logging.INFO
    """The level of the launcher's lines, as a number of :mod:`logging`."""
    grace_s: float = GRACE_S
    job: str = "job"
    journal: Path = Path("journal.jsonl")
    state_dir: Path = Path()
    heartbeat_interval_s: float = 1.0
    adopt: bool = False
    replay: bool = False
    """Whether survivors execute lost steps again as they were."""
    max_wait_s: float | None = None
    """The longest sleep; None: no limit."""
    releases: ReleaseLimits | None = None
    """Which workers a sleep releases; None: none."""
    scale_with: str = "recommend"
    """What adds and removes hosts."""
    observe: tuple[str, ...] = ()
    """Further sources of signals for that."""
    restart_policy: str = "Never"
    backoff_limit: int = 6
    """Most restarts of a failed job, if ``restart_policy`` is ``OnFailure``."""
    resume: bool = False
    """Go on with the last run, even if it has ended."""
    record_events: Path | None = None
    """A file for all events of the driver."""
    metrics: ListenAddress | None = None
    """Where the launcher answers Prometheus."""
    agent_metrics: ListenAddress | None = None
    """The same on each host."""
    tensorboard: Path | None = None
    """A folder for scalars."""
    dashboard: ListenAddress | None = None
    notify: str | None = None
    """The URL of a webhook for messages."""
    unknown_keys: str | None = None
    """The warning about keys of ``--config-file`` that Horovod does not have."""
    notices: CloudNotices = CloudNotices()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What workers get in addition to their host's own environment."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those before the command, as in ``LR=1 python train.py``. They replace variables of this environment."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise UsageError(problem)


def _problems(s: RunSettings) -> Iterator[str]:
    """Everything wrong with ``s``, most basic first."""
    for group in (_of_sizes, _of_hosts, _of_scaling, _of_times, _of_faults, _of_engines, _of_transports):
        yield from (message for wrong, message in group(s) if wrong)


Checks = list[tuple[bool, str]]
"""Whether something is wrong, and the message for that."""


def _of_sizes(s: RunSettings) -> Checks:
    limits, source = s.options.limits, s.options.all_slots_of
    start, low, most = limits.start, limits.least, limits.most
    sizes = ",".join(map(str, limits.allowed))
    counted = source and f"the slots of {source} ({start}), with which a job starts without -np"
    return [
        (not s.command, "no command was given; write it last: hvd-elastic run [options] train.py"),
        (start < 1, f"-np is {start}; at least 1 process is needed"),
        (low < 1, f"--min-np is {low}; at least 1 process is needed"),
        (most is not None and low > most, f"--min-np {low} is more than --max-np {most}; no world size satisfies both"),
        (
            low > start,
            f"--min-np {low} is more than {counted or f'-np {start}'}; the job would start below its own minimum",
        ),
        (
            most is not None and most < start,
            f"--max-np {most} is less than -np {start}; the job could never start",
        ),
        (
            bool(sizes) and all(size < low for size in limits.allowed),
            f"--allowed-sizes {sizes}: all are below the minimum of {low}",
        ),
        (
            bool(sizes) and most is not None and all(size > most for size in limits.allowed),
            f"--allowed-sizes {sizes}: all are above the maximum of {most}",
        ),
    ]


def _of_hosts(s: RunSettings) -> Checks:
    start, (low, high) = s.options.limits.start, s.options.cooldown_s
    slots = start if s.sources.hosts is None else s.sources.hosts.slots
    return [
        (
            slots < start,
            f"-np is {start}, the hosts given have {slots} in all, and they never get more; give more slots "
            "with --hosts, or a lower -np",
        ),
        (
            s.default_slots is not None and not 1 <= s.default_slots <= MAX_SLOTS,
            f"--slots-per-host is {s.default_slots}; write a number from 1 to {MAX_SLOTS}",
        ),
        (
            not 1 <= low <= high <= MAX_COOLDOWN_S,
            f"--blacklist-cooldown-range is {low:g} {high:g}; write two times, the first of at least 1s, "
            f"the second no smaller and at most {MAX_COOLDOWN_S}s",
        ),
    ]


def _from_0(flag: str, value: float | None, what: str = "a time of 0 or more") -> tuple[bool, str]:
    return value is not None and not value >= 0, f"{flag} is {value or 0:g}; give {what}"


def _above_0(flag: str, value: float | None, more: str = "") -> tuple[bool, str]:
    wrong = value is not None and not value > 0
    return wrong, f"{flag} is {value or 0:g}; write a time above 0, such as {durations.EXAMPLES}{more}"


def _of_scaling(s: RunSettings) -> Checks:
    scaling = s.options.scaling
    return [
        (
            scaling is not None and scaling.acts and s.options.limits.most is None,
            "--autoscale asks for hosts, and nothing bounds it; give --max-np",
        ),
        (
            scaling is not None and s.sources.hosts is not None,
            "--autoscale: the hosts are fixed, none can come; name their source, such as --hosts-file or --discovery",
        ),
    ]


def _of_times(s: RunSettings) -> Checks:
    options = s.options
    beat, silence = s.heartbeat_interval_s, options.heartbeat_timeout_s
    return [
        _above_0("--elastic-timeout", options.elastic_timeout_s),
        _from_0("--settle", options.limits.settle_s),
        _above_0("--standby-timeout", options.standby_timeout_s),
        (not options.wait_lines_s >= 4, f"--wait-lines is {options.wait_lines_s:g}, but must be 4 s at least"),
        (
            not 0 < beat < silence,
            f"--heartbeat-interval {beat:g} and --heartbeat-timeout {silence:g}: the interval must be above 0 and "
            "shorter than the timeout",
        ),
        (beat > MAX_TIME_S, f"--heartbeat-interval is {beat:g}; write a time of {MAX_TIME_S:.0f}s at most"),
        _above_0("--progress-timeout", options.progress_timeout_s, ", or leave it out"),
        (
            not 0 <= options.orphan_grace_s <= MAX_TIME_S,
            f"--orphan-grace is {options.orphan_grace_s:g}; write a time from 0 to {MAX_TIME_S:.0f}s",
        ),
        _from_0("--commit-wait", options.commit_wait_s),
        _above_0("--sleep-after", options.sleep_after_s),
        _from_0("--max-wait-time", s.max_wait_s, "a time of 0 or more, or leave it out"),
    ]


def _of_faults(s: RunSettings) -> Checks:
    options = s.options
    return [
        _from_0("--reset-limit", options.reset_limit, "0 or more, or leave it out"),
        (
            options.restart_stalled and options.progress_timeout_s is None,
            "--restart-stalled needs --progress-timeout: it says when a process is stalled",
        ),
        (
            options.below_min == "sleep" and options.durability is None,
            "--below-min sleep needs checkpoints: nothing sleeps before it is on storage; name --checkpoint-dir",
        ),
        (
            s.releases is not None and options.below_min != "sleep",
            "--sleep-releases is for jobs that sleep; give --below-min sleep, too",
        ),
        _from_0("--job-backoff-limit", s.backoff_limit, "0 or more"),
        _from_0("--failure-budget", options.failure_budget, "0 or more"),
    ]


def _of_engines(s: RunSettings) -> Checks:
    engine = s.options.engine
    named, mpi = f"--engine {engine}", engine == "mpirun"
    return [
        (engine not in ENGINES, f"{named}: choose one of {', '.join(ENGINES)}"),
        (
            s.adopt and engine != DEFAULT,
            f"{named} and --adopt: only Horovod's scripts can be adopted; call elastic.init() in the script instead",
        ),
        (
            engine in RESTARTING and s.options.spares.asked_for and s.options.spares.most(100) > 0,
            f"{named} and --spares: each of its worlds has new processes, so none can wait; leave --spares out",
        ),
        (
            engine in RESTARTING and s.replay,
            f"{named} and --replay: each of its worlds has new processes, so none is left that knows the lost steps; "
            "leave --replay out, or take --engine torch",
        ),
        (mpi and s.rsh == "pod", "--engine mpirun starts its ranks over ssh, which --rsh pod does without; use ssh"),
        (
            mpi and " " in (s.ssh_identity_file or ""),
            f"--ssh-identity-file {s.ssh_identity_file}: Open MPI cannot take an option with a space; use another path",
        ),
    ]


def _of_transports(s: RunSettings) -> Checks:
    port, key = s.ssh_port, s.ssh_identity_file
    return [
        (port is not None and not 1 <= port <= 65535, f"--ssh-port is {port}; ports are 1 to 65535"),
        (s.code is not None and not s.code.is_dir(), f"--code {s.code}: there is no such folder"),
        (s.options.send_code and s.code is None, "--send-code sends the files of a folder; name it with --code DIR"),
        (key is not None and not Path(key).is_file(), f"--ssh-identity-file {key}: there is no such file"),
        (
            not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", s.job),
            f"--job {s.job!r} is not a usable name; use letters, digits, '.', '_' and '-', at most 100",
        ),
    ]
