"""The options of ``horovodrun`` 0.28.1, with its names and meanings, on any machine: with Horovod or without.

What a job needs is installed where its processes run, which may be elsewhere; so Horovod's own parser is not used. A
test compares names, destinations, types, defaults and the variables for workers with it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.durations import METAVAR, time, whole_seconds
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.printable import one_line
from hvd_elastic_ext.core.publication import parse_mpi_text
from hvd_elastic_ext.io.config_file import read_config
from hvd_elastic_ext.io.user_files import read_given

LOG_LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
ABSENT: Final = "Horovod is not installed on this machine"
MAX_HOSTFILE: Final = 16 << 20
"""Most bytes of a host file."""


class Tuned(NamedTuple):
    """An option that tunes Horovod. ``variable``: by which workers learn it, "" for none; ``section`` and ``key``: its
    place in the file of ``--config-file``.
    """

    option: str
    type: Callable[[str], Any] | None
    variable: str
    section: str
    key: str
    help: str

    @property
    def dest(self) -> str:
        return self.option.lstrip("-").replace("-", "_")


NOT_ELASTIC: Final = "for --autotune, which cannot be elastic"
VALUES: Final = (
    Tuned(
        "--fusion-threshold-mb", int, "HOROVOD_FUSION_THRESHOLD", "params", "fusion_threshold_mb", "MB fused at most"
    ),
    Tuned("--cycle-time-ms", float, "HOROVOD_CYCLE_TIME", "params", "cycle_time_ms", "ms between two cycles"),
    Tuned(
        "--cache-capacity", int, "HOROVOD_CACHE_CAPACITY", "params", "cache_capacity", "tensor names that are cached"
    ),
    Tuned("--autotune-log-file", None, "", "autotune", "log_file", NOT_ELASTIC),
    Tuned("--autotune-warmup-samples", int, "", "autotune", "warmup_samples", NOT_ELASTIC),
    Tuned("--autotune-steps-per-sample", int, "", "autotune", "steps_per_sample", NOT_ELASTIC),
    Tuned("--autotune-bayes-opt-max-samples", int, "", "autotune", "bayes_opt_max_samples", NOT_ELASTIC),
    Tuned("--autotune-gaussian-process-noise", float, "", "autotune", "gaussian_process_noise", NOT_ELASTIC),
    Tuned("--timeline-filename", None, "HOROVOD_TIMELINE", "timeline", "filename", "JSON file of Horovod's own events"),
    Tuned(
        "--stall-check-warning-time-seconds",
        whole_seconds,
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "stall_check",
        "warning_time_seconds",
        "until Horovod warns that ranks wait for others (60)",
    ),
    Tuned(
        "--stall-check-shutdown-time-seconds",
        whole_seconds,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "stall_check",
        "shutdown_time_seconds",
        "until Horovod ends such ranks (0: never)",
    ),
    Tuned(
        "--num-nccl-streams", int, "HOROVOD_NUM_NCCL_STREAMS", "library_options", "num_nccl_streams", "NCCL's streams"
    ),
    Tuned(
        "--thread-affinity", int, "HOROVOD_THREAD_AFFINITY", "library_options", "thread_affinity", "CPU of its thread"
    ),
    Tuned(
        "--gloo-timeout-seconds",
        whole_seconds,
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "library_options",
        "gloo_timeout_seconds",
        "longest operation of Gloo (30)",
    ),
    Tuned(
        "--log-level", None, "HOROVOD_LOG_LEVEL", "logging", "level", "lowest level of Horovod's own lines (WARNING)"
    ),
)
"""Options with a value. A time of Horovod's is a whole number of seconds."""
SWITCHES: Final = (
    Tuned(
        "--hierarchical-allreduce",
        None,
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        "params",
        "hierarchical_allreduce",
        "reduce within each host first",
    ),
    Tuned(
        "--hierarchical-allgather",
        None,
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        "params",
        "hierarchical_allgather",
        "gather within each host first",
    ),
    Tuned(
        "--torus-allreduce",
        None,
        "HOROVOD_TORUS_ALLREDUCE",
        "params",
        "torus_allreduce",
        "reduce over rows and columns of hosts (NCCL)",
    ),
    Tuned("--autotune", None, "", "autotune", "enabled", "refused: it cannot be elastic"),
    Tuned(
        "--timeline-mark-cycles",
        None,
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "timeline",
        "mark_cycles",
        "mark Horovod's cycles in that file",
    ),
    Tuned(
        "--mpi-threads-disable",
        None,
        "HOROVOD_MPI_THREADS_DISABLE",
        "library_options",
        "mpi_threads_disable",
        "no threads in MPI",
    ),
)
"""Switches, each with its opposite ``--no-…``."""
FILE_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "controller": frozenset(),
    **{
        section: frozenset(each.key for each in (*VALUES, *SWITCHES) if each.section == section)
        for section in ("params", "autotune", "timeline", "library_options")
    },
    "stall_check": frozenset({"enabled", "warning_time_seconds", "shutdown_time_seconds"}),
    "logging": frozenset({"level", "with_timestamp"}),
}
"""The keys of the file of ``--config-file``, by their sections; ``controller`` is not a section."""
MAX_UNKNOWN: Final = 20
"""Most unknown keys of that file that are named."""
STALL_CHECK: Final = "HOROVOD_STALL_CHECK_DISABLE"
HIDE_TIME: Final = "HOROVOD_LOG_HIDE_TIME"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``horovodrun``'s options, but not its command."""
    _of_the_job(parser.add_argument_group("as in horovodrun"))
    _of_hosts(parser.add_argument_group("as in horovodrun: hosts").add_mutually_exclusive_group())
    _tuning(parser.add_argument_group("as in horovodrun: Horovod itself"))


def _of_the_job(group: Any) -> None:
    add, number = group.add_argument, {"type": int, "metavar": "N"}
    add("-np", "--num-proc", dest="num_proc", **number, help="processes needed to start (all slots that are there)")
    add("--min-np", "--min-num-proc", dest="min_num_proc", **number, help="processes needed to go on (--num-proc)")
    add("--max-np", "--max-num-proc", dest="max_num_proc", **number, help="processes at most (no limit)")
    add("--slots-per-host", dest="slots", **number, help="slots of a host that is given without a number")
    add("--elastic-timeout", type=time, metavar=METAVAR, help="longest wait for --min-np processes (600)")
    add("--reset-limit", **number, help="highest number of changes of the world (no limit)")
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        type=time,
        nargs=2,
        metavar=(METAVAR, METAVAR),
        help="for how long a host that failed is blocked, at first and at most (10 300)",
    )
    for name in ("--network-interfaces", "--network-interface"):
        add(name, dest="nics", action=_Interfaces, nargs=1, metavar="NAME", help="interface of this host to use")
    add("--output-filename", metavar="DIR", help="folder for the output of each process")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true", help="time before each line")
    add("--verbose", action="store_true", help="print more log lines")
    add("-p", "--ssh-port", type=int, metavar="PORT", help="port of sshd on the hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")


def _of_hosts(group: Any) -> None:
    group.add_argument("-H", "--hosts", metavar="HOST:SLOTS,…", help="the hosts, and how many processes each may have")
    group.add_argument("-hostfile", "--hostfile", metavar="PATH", help="file of such hosts, as 'name slots=N' lines")
    group.add_argument("--host-discovery-script", metavar="PATH", help="program that prints host:slots lines")


def _tuning(group: Any) -> None:
    add = group.add_argument
    add("-v", "--version", action=_Version, help="print Horovod's version")
    add("-cb", "--check-build", action="store_const", const=True, help="print what Horovod was built with")
    add("--config-file", metavar="FILE", help="YAML file of Horovod's own options, as horovodrun has it")
    for each in VALUES:
        choices = LOG_LEVELS if each.option == "--log-level" else None
        metavar = METAVAR if each.type is whole_seconds else None if choices else "VALUE" if each.type is None else "N"
        add(each.option, type=each.type, choices=choices, metavar=metavar, help=each.help)
    for each in SWITCHES:
        switch = group.add_mutually_exclusive_group().add_argument
        switch(each.option, dest=each.dest, action="store_const", const=True, help=each.help)
        no = f"--no-{each.option.lstrip('-')}"
        switch(no, dest=each.dest, action="store_const", const=False, help=argparse.SUPPRESS)
    hidden = {"action": "store_const", "help": argparse.SUPPRESS}
    for names, dest in (
        ({"--no-stall-check": True, "--stall-check": False}, "no_stall_check"),
        (
            {
                "--log-with-timestamp": True,
                "--log-without-timestamp": False,
                "--log-hide-timestamp": False,
                "--no-log-hide-timestamp": True,
            },
            "log_with_timestamp",
        ),
    ):
        group_of_one = group.add_mutually_exclusive_group()
        for name, value in names.items():
            group_of_one.add_argument(name, dest=dest, const=value, **hidden)
    _without_effect(group)


def _without_effect(group: Any) -> None:
    """Options that choose another controller, which :func:`why_not_elastic` refuses, or that are about it."""
    hidden = {"help": argparse.SUPPRESS}
    group.add_argument("--tcp", dest="tcp_flag", action="store_true", **hidden)
    group.add_argument("--disable-cache", action="store_true", **hidden)
    group.add_argument("--start-timeout", type=whole_seconds, metavar=METAVAR, **hidden)
    group.add_argument("--mpi-args", **hidden)
    group.add_argument("--binding-args", **hidden)
    controllers = group.add_mutually_exclusive_group()
    for name in ("gloo", "mpi", "jsrun"):
        controllers.add_argument(f"--{name}", dest=f"use_{name}", action="store_true", **hidden)


class _Version(argparse._VersionAction):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        try:
            sys.stdout.write(f"{importlib.metadata.version('horovod')}\n")
        except importlib.metadata.PackageNotFoundError:
            raise UsageError(f"--version is Horovod's, as in horovodrun, and {ABSENT}") from None
        parser.exit()


class _Interfaces(argparse.Action):
    """Collects names, from several options or separated by commas."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        names = set(str(values[0]).split(","))
        setattr(namespace, self.dest, names | (getattr(namespace, self.dest) or set()))


def complete(args: argparse.Namespace) -> None:
    """Add what ``--config-file`` says, with a warning about what nobody reads of it (``unknown_keys``), and do what
    ``--check-build`` asks for. Raises :class:`UsageError`."""
    if args.config_file:
        _add_file(args, args.config_file)
    for each in VALUES:
        value = getattr(args, each.dest)
        if each.type is not None and value is not None and value < 0:
            raise UsageError(f"{each.option} is {value}; give 0 or more")
    if args.check_build:
        try:
            from horovod.runner.launch import check_build
        except ImportError:
            raise UsageError(f"--check-build: {ABSENT}") from None
        check_build(args.verbose)


def _add_file(args: argparse.Namespace, path: str) -> None:
    """Set each option that the file has and the command line has not, and note what the file has beyond that."""
    where = f"--config-file {path}"
    document = read_config(Path(path), option="--config-file")
    args.unknown_keys = unknown_keys(document, where=where)
    controller = str(document.get("controller") or "").lower()
    if controller not in ("", "gloo", "mpi"):
        raise UsageError(f"{where}: controller {controller!r} is not one of gloo, mpi")
    if controller and not (args.use_gloo or args.use_mpi):
        args.use_gloo, args.use_mpi = controller == "gloo", controller == "mpi"
    for each in VALUES:
        value = _section(document, each.section, where).get(each.key)
        if value is not None and getattr(args, each.dest) is None:
            try:
                setattr(args, each.dest, str(value) if each.type is None else each.type(str(value)))
            except ValueError:
                raise UsageError(f"{where}: {each.section}: {each.key}: {value!r} is not a number") from None
    if args.log_level is not None and args.log_level not in LOG_LEVELS:
        raise UsageError(f"{where}: logging: level: {args.log_level!r} is not one of {', '.join(LOG_LEVELS)}")
    own = [(each.dest, each.section, each.key) for each in SWITCHES]
    for dest, section, key in (*own, ("log_with_timestamp", "logging", "with_timestamp")):
        value = _section(document, section, where).get(key)
        if value is not None and getattr(args, dest) is None:
            setattr(args, dest, bool(value))
    checks = _section(document, "stall_check", where)
    if checks and args.no_stall_check is None:
        args.no_stall_check = not checks.get("enabled", True)


def unknown_keys(document: Mapping[str, Any], *, where: str) -> str | None:
    """A warning that names the keys of a file which Horovod does not have; None if it has all. ``horovodrun`` passes
    over them without a word. Pure.
    """
    found: list[tuple[str, ...]] = [(str(name),) for name in document if name not in FILE_KEYS]
    for section, keys in FILE_KEYS.items():
        table = document.get(section)
        if isinstance(table, Mapping):
            found += [(section, str(key)) for key in table if key not in keys]
    if not found:
        return None
    named = [f"'{one_line(': '.join(path), most=80)}'{_meant(path)}" for path in found[:MAX_UNKNOWN]]
    more = f" and {len(found) - MAX_UNKNOWN} more" if len(found) > MAX_UNKNOWN else ""
    key, has, it = ("key", "has", "it") if len(found) == 1 else ("keys", "have", "them")
    return (
        f"{one_line(where, most=1000)}: unknown {key} {', '.join(named)}{more} {has} no effect, as with horovodrun; "
        f"correct or remove {it} (options of hvd-elastic run are read from a file of --config)"
    )


def _meant(path: tuple[str, ...]) -> str:
    """The known key that is like an unknown one, as a part of a message."""
    known = [f"{section}: {key}" for section, keys in FILE_KEYS.items() for key in sorted(keys)]
    elsewhere = [each for each in known if each.endswith(f": {path[-1]}")]
    near = elsewhere or difflib.get_close_matches(": ".join(path)[:80], [*known, *FILE_KEYS], n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _section(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = document.get(name) or {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{where}: {name} holds {found!r}; write a table of names and values")
    return found


def tuning_env(args: argparse.Namespace) -> dict[str, str]:
    """The environment variables through which Horovod's tuning options reach workers."""
    env: dict[str, str] = {}
    for each in (*VALUES, *SWITCHES):
        value = getattr(args, each.dest)
        if value is not None and each.variable and not (each.section == "timeline" and not args.timeline_filename):
            env[each.variable] = str(int(value) if isinstance(value, bool) else value)
    if args.fusion_threshold_mb is not None:
        env["HOROVOD_FUSION_THRESHOLD"] = str(args.fusion_threshold_mb * 1024 * 1024)
    if args.no_stall_check is not None:
        env[STALL_CHECK] = str(int(args.no_stall_check))
    if args.log_with_timestamp is not None:
        env[HIDE_TIME] = str(int(not args.log_with_timestamp))
    if args.tcp_flag:
        env["NCCL_IB_DISABLE"] = "1"
    return env


def read_hostfile(path: str) -> HostSet:
    """Read an MPI-style host file, of ``name slots=N`` lines. Raises :class:`UsageError` or :class:`BadHosts`."""
    try:
        text = read_given(path, most=MAX_HOSTFILE).decode("utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--hostfile {path}: {why}; write lines of the form 'name slots=N'") from None
    hosts = parse_mpi_text(text, where=f"--hostfile {path}")
    if not hosts:
        raise UsageError(f"--hostfile {path} lists no host; write lines of the form 'name slots=N'")
    return hosts


def why_not_elastic(args: argparse.Namespace) -> str | None:
    """Say which option cannot be used in an elastic job, and why, or None if all can."""
    if args.use_mpi or args.use_jsrun:
        return "--mpi and --jsrun cannot be elastic: only Horovod's Gloo controller can form a new world"
    if args.autotune:
        return "--autotune cannot be used in an elastic job: Horovod crashes on the first resize with it (horovod#2835)"
    return None
