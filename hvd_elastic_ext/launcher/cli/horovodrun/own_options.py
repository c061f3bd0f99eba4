"""``horovodrun``'s options for a machine without Horovod: those that apply to any engine.

The same interface as ``horovod_options``. A test compares names, destinations and types with Horovod's own parser.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli.horovodrun.parser import ParserInput, parser_class

SWITCHES: Final = """
--version -v --check-build -cb --disable-cache --hierarchical-allreduce --no-hierarchical-allreduce
--hierarchical-allgather --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune
--timeline-mark-cycles --no-timeline-mark-cycles --no-stall-check --stall-check --mpi-threads-disable
--no-mpi-threads-disable --tcp --log-with-timestamp --log-without-timestamp --log-hide-timestamp
--no-log-hide-timestamp --gloo --mpi --jsrun
"""
VALUES: Final = """
--start-timeout --config-file --fusion-threshold-mb --cycle-time-ms --cache-capacity --autotune-log-file
--autotune-warmup-samples --autotune-steps-per-sample --autotune-bayes-opt-max-samples
--autotune-gaussian-process-noise --timeline-filename --stall-check-warning-time-seconds
--stall-check-shutdown-time-seconds --mpi-args --binding-args --num-nccl-streams --thread-affinity
--gloo-timeout-seconds --log-level
"""
"""Options of Horovod itself, without and with a value. Without Horovod they are refused by name."""


def parse(words: ParserInput) -> argparse.Namespace:
    """Parse our options and those of ``horovodrun`` that need no Horovod. Raises :class:`UsageError`."""
    parser = parser_class(words)()
    add_options(parser)
    return parser.parse_args()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``horovodrun``'s options."""
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command to run")
    _of_the_job(parser.add_argument_group("as in horovodrun"))
    _of_hosts(parser.add_argument_group("as in horovodrun: hosts").add_mutually_exclusive_group())
    for names, nargs in ((SWITCHES, 0), (VALUES, None)):
        for name in names.split():
            parser.add_argument(name, nargs=nargs, dest="horovods", action=_Refused, help=argparse.SUPPRESS)


def _of_the_job(group: Any) -> None:
    add, number = group.add_argument, {"type": int, "metavar": "N"}
    add("-np", "--num-proc", dest="num_proc", **number, help="processes needed to start (all slots that are there)")
    add("--min-np", "--min-num-proc", dest="min_num_proc", **number, help="processes needed to go on (--num-proc)")
    add("--max-np", "--max-num-proc", dest="max_num_proc", **number, help="processes at most (no limit)")
    add("--slots-per-host", dest="slots", **number, help="slots of a host that is given without a number")
    add("--elastic-timeout", type=int, metavar="S", help="seconds to wait for --min-np processes (600)")
    add("--reset-limit", **number, help="highest number of changes of the world (no limit)")
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds for which a host that failed is blocked, at first and at most (10 300)",
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


class _Refused(argparse.Action):
    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> NoReturn:
        raise UsageError(f"{option_string} is an option for Horovod itself, which is not installed; leave it out")


class _Interfaces(argparse.Action):
    """Collects names, from several options or separated by commas."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        names = set(str(values[0]).split(","))
        setattr(namespace, self.dest, names | (getattr(namespace, self.dest) or set()))


def tuning_env(args: argparse.Namespace) -> dict[str, str]:
    """Empty: without Horovod there is nothing to tune."""
    return {}


def read_hostfile(path: str) -> str:
    """Turn an MPI-style host file (``name slots=N`` lines) into ``name:N,…``. Raises :class:`UsageError`."""
    try:
        return ",".join(map(_host, Path(path).read_text(encoding="utf-8").splitlines()))
    except (OSError, ValueError) as error:
        raise UsageError(f"--hostfile {path}: {error}; write lines of the form 'name slots=N'") from None


def _host(line: str) -> str:
    words: Sequence[str] = line.split()
    if len(words) < 2 or not words[1].startswith("slots="):
        raise ValueError(f"{line!r} cannot be read")
    return f"{words[0]}:{words[1].removeprefix('slots=')}"


def why_not_elastic(args: argparse.Namespace) -> str | None:
    """None: all options of this parser work in an elastic job."""
    return None
