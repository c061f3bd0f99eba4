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
from hvd_elastic_ext.core.clouds import AUTO, CLOUDS
from hvd_elastic_ext.core.engines import DEFAULT, ENGINES, RESTARTING
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS, HostSet
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.rules.health.ledger import DEFAULT_COOLDOWN_S
from hvd_elastic_ext.launcher.rules.suspend.release_policy import ReleaseLimits
from hvd_elastic_ext.launcher.state.options import ScaleOptions

ELASTIC_TIMEOUT_S = 600.0
"""Horovod's default of ``--elastic-timeout``."""
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
    """Where hosts come from; exactly one is set. See :mod:`hvd_elastic_ext.launcher.sources.sources`.

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
        raise UsageError(f"{where} {text!r}: write an address, such as 0.0.0.0:9465 for all; no name") from None
    return found


CHECKPOINTS = "checkpoints"
"""The folder of checkpoints below the job's, unless ``--checkpoint-dir`` names another one."""
OUTPUT = "output"
"""The folder of processes' output below the job's, where a dashboard is served and no other one is named."""
NOTICES_FROM = ("none", AUTO, *CLOUDS)
"""Values of ``--notices-from``: clouds that may tell hosts that they are taken back."""

OFF = "off"
PRELOADS = (AUTO, OFF)
"""Values of ``--preload``."""


@dataclass(frozen=True, slots=True)
class CloudNotices:
    """The cloud whose metadata service each host asks whether it is taken back.

    ``url``: the address of that service, if it is not the usual one. Raises :class:`UsageError`.
    """

    source: str = "none"
    url: str | None = None

    def __post_init__(self) -> None:
        if self.source not in NOTICES_FROM:
            raise UsageError(f"--notices-from {self.source!r} is not one of {', '.join(NOTICES_FROM)}")
        if self.url is not None and not re.fullmatch(r"http://[^\s/?#@]+(/[^\s?#]*)?", self.url):
            raise UsageError(f"--metadata-url {self.url!r} is not an address; write it as http://host:port")

    def env(self) -> dict[str, str]:
        """What agents learn it from; without a ``url``, each host's own environment may name one."""
        return {"HVD_ELASTIC_NOTICES_FROM": self.source, **({"HVD_ELASTIC_METADATA_URL": self.url} if self.url else {})}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A whole job. Raises :class:`UsageError`, one line, for what cannot work.

    ``num_proc`` processes are needed to start, ``min_num_proc`` to go on,
    ``max_num_proc`` are used at most (None: as many as there are slots).
    ``max_wait_s``: longest sleep; None: no limit. ``releases``: which workers it releases then.
    ``scaling``: how many hosts the job asks for; ``scale_with``: what adds and removes them;
    ``observe``: further sources of signals for that.
    ``backoff_limit``: most restarts of a failed job if ``restart_policy`` is OnFailure.
    ``commit_every``: one in this many calls of ``commit()`` commits; None: all of them.
    ``resume``: go on with the last run, even if it has ended.
    ``record_events``: a file for all events of the driver. ``metrics``: the address for Prometheus;
    ``agent_metrics``: the same on each host. ``tensorboard``: a folder for scalars.
    ``dashboard``: the address of the page.
    ``notify``: the URL of a webhook for messages.
    ``all_slots_of``: the source of hosts whose slots ``num_proc`` counts, up to ``max_num_proc``; None if the user gave
    a number.
    ``misplaced``: options of ``run`` that follow the script, for the message if the script refuses its options.
    ``unknown_keys``: the warning about keys of ``--config-file`` that Horovod does not have.
    ``cooldown_s``: shortest and longest time without a failed host. ``env``: what
    workers get in addition to their host's own environment. ``variables``: those before the command, as in
    ``LR=1 python train.py``; they replace variables of this environment.
    """

    command: tuple[str, ...]
    sources: Sources
    num_proc: int
    min_num_proc: int
    max_num_proc: int | None = None
    default_slots: int | None = None
    elastic_timeout_s: float = ELASTIC_TIMEOUT_S
    reset_limit: int | None = None
    cooldown_s: tuple[float, float] = DEFAULT_COOLDOWN_S
    interfaces: tuple[str, ...] = ()
    rsh: str | None = None
    code: Path | None = None
    """A folder with files that must be the same on the hosts as on this machine."""
    send_code: bool = False
    """Hosts elsewhere that have other files get these, before their agent starts."""
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    output_dir: Path | None = None
    timestamps: bool = False
    log_level: int = logging.INFO
    """The level of the launcher's lines, as a number of :mod:`logging`."""
    grace_s: float = GRACE_S
    job: str = "job"
    journal: Path = Path("journal.jsonl")
    state_dir: Path = Path()
    allowed_sizes: tuple[int, ...] = ()
    settle_s: float | None = None
    """None is 3 s. Then newcomers that are all ready join 1 s after their start, if that restarts no process."""
    standby_timeout_s: float = 600.0
    wait_lines_s: float = 60.0
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 10.0
    orphan_grace_s: float = 60.0
    commit_wait_s: float = 60.0
    failure_budget: int = 10
    adopt: bool = False
    preload: str = OFF
    restart_from_scratch: bool = False
    engine: str = DEFAULT
    below_min: str = "wait"
    sleep_after_s: float = 30.0
    max_wait_s: float | None = None
    releases: ReleaseLimits | None = None
    scaling: ScaleOptions | None = None
    scale_with: str = "recommend"
    observe: tuple[str, ...] = ()
    restart_policy: str = "Never"
    backoff_limit: int = 6
    progress_timeout_s: float | None = None
    restart_stalled: bool = False
    drain_stragglers: bool = False
    durability: Durability | None = None
    commit_every: Cadence | None = None
    resume: bool = False
    record_events: Path | None = None
    metrics: ListenAddress | None = None
    agent_metrics: ListenAddress | None = None
    tensorboard: Path | None = None
    dashboard: ListenAddress | None = None
    notify: str | None = None
    all_slots_of: str | None = None
    misplaced: str | None = None
    unknown_keys: str | None = None
    notices: CloudNotices = CloudNotices()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def fixed_hosts(self) -> bool:
        """Whether the hosts at the start are the only ones."""
        return self.sources.hosts is not None

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
    low, most = s.min_num_proc, s.max_num_proc
    sizes = ",".join(map(str, s.allowed_sizes))
    counted = s.all_slots_of and f"the slots of {s.all_slots_of} ({s.num_proc}), with which a job starts without -np"
    return [
        (not s.command, "no command was given; write it last: hvd-elastic run [options] train.py"),
        (s.num_proc < 1, f"-np is {s.num_proc}; at least 1 process is needed"),
        (low < 1, f"--min-np is {low}; at least 1 process is needed"),
        (most is not None and low > most, f"--min-np {low} is more than --max-np {most}; no world size satisfies both"),
        (
            low > s.num_proc,
            f"--min-np {low} is more than {counted or f'-np {s.num_proc}'}; the job would start below its own minimum",
        ),
        (
            most is not None and most < s.num_proc,
            f"--max-np {most} is less than -np {s.num_proc}; the job could never start",
        ),
        (
            bool(sizes) and all(size < low for size in s.allowed_sizes),
            f"--allowed-sizes {sizes}: all are below the minimum of {low}",
        ),
        (
            bool(sizes) and most is not None and all(size > most for size in s.allowed_sizes),
            f"--allowed-sizes {sizes}: all are above the maximum of {most}",
        ),
    ]


def _of_hosts(s: RunSettings) -> Checks:
    low, high = s.cooldown_s
    slots = s.num_proc if s.sources.hosts is None else s.sources.hosts.slots
    return [
        (
            slots < s.num_proc,
            f"-np is {s.num_proc}, the hosts given have {slots} in all, and they never get more; give more slots "
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
    return [
        (
            s.scaling is not None and s.scaling.acts and s.max_num_proc is None,
            "--autoscale asks for hosts, and nothing bounds it; give --max-np",
        ),
        (
            s.scaling is not None and s.fixed_hosts,
            "--autoscale: the hosts are fixed, none can come; name their source, such as --hosts-file or --discovery",
        ),
    ]


def _of_times(s: RunSettings) -> Checks:
    beat, silence = s.heartbeat_interval_s, s.heartbeat_timeout_s
    return [
        _above_0("--elastic-timeout", s.elastic_timeout_s),
        _from_0("--settle", s.settle_s),
        _above_0("--standby-timeout", s.standby_timeout_s),
        (not s.wait_lines_s >= 4, f"--wait-lines is {s.wait_lines_s:g}, but must be 4 s at least"),
        (
            not 0 < beat < silence,
            f"--heartbeat-interval {beat:g} and --heartbeat-timeout {silence:g}: the interval must be above 0 and "
            "shorter than the timeout",
        ),
        (beat > MAX_TIME_S, f"--heartbeat-interval is {beat:g}; write a time of {MAX_TIME_S:.0f}s at most"),
        _above_0("--progress-timeout", s.progress_timeout_s, ", or leave it out"),
        (
            not 0 <= s.orphan_grace_s <= MAX_TIME_S,
            f"--orphan-grace is {s.orphan_grace_s:g}; write a time from 0 to {MAX_TIME_S:.0f}s",
        ),
        _from_0("--commit-wait", s.commit_wait_s),
        _above_0("--sleep-after", s.sleep_after_s),
        _from_0("--max-wait-time", s.max_wait_s, "a time of 0 or more, or leave it out"),
    ]


def _of_faults(s: RunSettings) -> Checks:
    return [
        _from_0("--reset-limit", s.reset_limit, "0 or more, or leave it out"),
        (
            s.restart_stalled and s.progress_timeout_s is None,
            "--restart-stalled needs --progress-timeout: it says when a process is stalled",
        ),
        (
            s.below_min == "sleep" and s.durability is None,
            "--below-min sleep needs checkpoints: nothing sleeps before it is on storage; name --checkpoint-dir",
        ),
        (
            s.releases is not None and s.below_min != "sleep",
            "--sleep-releases is for jobs that sleep; give --below-min sleep, too",
        ),
        _from_0("--job-backoff-limit", s.backoff_limit, "0 or more"),
        _from_0("--failure-budget", s.failure_budget, "0 or more"),
    ]


def _of_engines(s: RunSettings) -> Checks:
    named, mpi = f"--engine {s.engine}", s.engine == "mpirun"
    return [
        (s.engine not in ENGINES, f"{named}: choose one of {', '.join(ENGINES)}"),
        (
            s.adopt and s.engine in RESTARTING,
            f"{named} and --adopt: only Horovod's scripts can be adopted; call elastic.init() in the script instead",
        ),
        (
            s.preload == AUTO and s.engine in RESTARTING,
            f"{named} and --preload auto: only processes of Horovod's worlds can be forked; leave --preload out",
        ),
        (mpi and s.rsh == "pod", "--engine mpirun starts its ranks over ssh, which --rsh pod does without; use ssh"),
        (
            mpi and " " in (s.ssh_identity_file or ""),
            f"--ssh-identity-file {s.ssh_identity_file}: Open MPI takes no option with a space; use another path",
        ),
    ]


def _of_transports(s: RunSettings) -> Checks:
    port, key = s.ssh_port, s.ssh_identity_file
    return [
        (port is not None and not 1 <= port <= 65535, f"--ssh-port is {port}; ports are 1 to 65535"),
        (s.code is not None and not s.code.is_dir(), f"--code {s.code}: there is no such folder"),
        (s.send_code and s.code is None, "--send-code sends the files of a folder; name it with --code DIR"),
        (key is not None and not Path(key).is_file(), f"--ssh-identity-file {key}: there is no such file"),
        (
            not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", s.job),
            f"--job {s.job!r} is not a usable name; use letters, digits, '.', '_' and '-', at most 100",
        ),
    ]
