"""The command ``hvd-discover``: reads the options, then runs the daemon or looks once."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from discover.daemon import assembly
from discover.daemon.admission_probe import parse_probe
from discover.daemon.loop import EventQueue
from discover.daemon.settings import SETTLE, FileSettings, KubernetesSettings, Settings, StaticSettings
from discover.pods.operators import GPUS, OPERATORS
from discover.publish.outputs import Outputs, add_options
from hvd_elastic_ext import __version__
from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import ElasticError, UsageError, users_mistake
from hvd_elastic_ext.core.printable import PrintableFormatter, printable
from hvd_elastic_ext.io.config_file import read_config
from hvd_elastic_ext.io.file_limits import raise_limit, too_few
from hvd_elastic_ext.io.option_parser import Parser, layered_argv
from hvd_elastic_ext.io.threads.writer_thread import discard, open_closed_streams

PREFIX = "HVD_DISCOVER_"
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LEAST_FILES = 48
"""Open files without which a daemon answers nobody."""

EPILOG = """\
Every option can also stand in the --config file (publish-to: PATH) and in the environment
(HVD_DISCOVER_PUBLISH_TO=PATH); a flag beats the environment, which beats the file.
Exit codes: 0 done, or stopped by SIGTERM; 1 failed; 2 usage, or bad hosts with --once or --hosts;
130 stopped by SIGINT.
"""


class _ConfigParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors are one line on standard error.

    ``argv`` has no program name; None takes the arguments of this process.
    """
    open_closed_streams()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT)
    for handler in logging.getLogger().handlers:  # servers and objects of a cluster choose some of the words
        handler.setFormatter(PrintableFormatter(LOG_FORMAT))
    # watchdog logs an error when a watched directory is removed, which is normal here.
    logging.getLogger("watchdog").setLevel(logging.CRITICAL)
    try:
        if (problem := too_few(raise_limit(LEAST_FILES), LEAST_FILES, "hvd-discover")) is not None:
            raise UsageError(problem)
        settings = settings_from(sys.argv[1:] if argv is None else argv, os.environ)
        life = f"{settings.source.kind}-{secrets.token_hex(8)}"
        if settings.once:
            return _print(assembly.look_once(settings, life=life))
        return _serve(settings, life)
    except ElasticError as error:
        sys.stderr.write(f"hvd-discover: {printable(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:  # only with --once: the daemon turns signals into events
        return 130


def _print(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        return 141  # the reader has closed the pipe; a shell reports SIGPIPE as 141
    except OSError as error:
        discard(sys.stdout)
        raise ElasticError(users_mistake(error) or f"the output cannot be written: {error.strerror}") from None
    return 0


def _serve(settings: Settings, life: str) -> int:
    inbox = EventQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, inbox.signalled)
    return assembly.serve(settings, life=life, inbox=inbox)


def settings_from(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Combine flags, environment and configuration file into settings. Raises :class:`UsageError` or
    :class:`BadHosts`.
    """
    parser = build_parser()
    first, _ = _config_parser().parse_known_args(argv)
    path = first.config or environ.get(f"{PREFIX}CONFIG")
    layered = layered_argv(
        parser,
        argv,
        config={} if path is None else read_config(Path(path)),
        config_name=str(path),
        environ=environ,
        prefix=PREFIX,
        reserved=["CONFIG"],
    )
    try:
        options = parser.parse_args(layered.argv)
        return Settings(
            source=_source(options), outputs=Outputs.of(options, _path), once=options.once, output=options.output
        )
    except UsageError as error:
        raise layered.placed(error) from None


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all options. It raises :class:`UsageError` where ``argparse`` exits with an error."""
    parser = Parser(
        prog="hvd-discover",
        see="",  # keeps an error in one line, for the log of a pod
        surplus="each word belongs to an option; see hvd-discover --help",
        description="Follow a source of hosts and publish them, atomically and only when they change.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        parents=[_config_parser()],
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--once", action="store_true", help="look and publish once, print the outcome, and end")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="form printed by --once")
    source = parser.add_argument_group("where hosts are seen")
    source.add_argument(
        "--source",
        choices=["kubernetes", "file", "static"],
        help="kubernetes: --job NAME; file: --watch PATH; static: --hosts a:4,b:4",
    )
    source.add_argument("--watch", metavar="PATH", help="file of host:slots lines to follow")
    source.add_argument("--hosts", metavar="HOST:SLOTS,...", help="hosts to publish")
    source.add_argument(
        "--slots", type=int, metavar="N", help="slots of every pod, or of hosts without (default: an error)"
    )
    _add_kubernetes_options(parser.add_argument_group("with --source kubernetes"))
    add_options(parser)
    return parser


def _add_kubernetes_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--namespace", metavar="NS", help="where the job is (default: that of the credentials)")
    group.add_argument("--job", metavar="NAME", help="job whose worker pods are the hosts")
    group.add_argument(
        "--operator",
        metavar="KIND",
        help=f"what makes the pods: {', '.join(OPERATORS)} (default: mpi; custom with --selector)",
    )
    group.add_argument("--selector", metavar="LABELS", help="labels of the worker pods, if not those of --operator")
    group.add_argument("--host-name", metavar="TEMPLATE", help="name of a pod's host, such as {name}.{namespace}.pod")
    group.add_argument(
        "--cluster-domain", metavar="DOMAIN", help="put after .svc in names (default: left to the resolver)"
    )
    group.add_argument(
        "--container",
        metavar="NAME",
        help="its GPUs are the slots, and its restarts count (default: the first container)",
    )
    group.add_argument(
        "--gpu-resource",
        action="append",
        metavar="NAME",
        help=f"its limit counts as slots, too, as nvidia.com/mig-*; may be repeated (always: {', '.join(GPUS)})",
    )
    group.add_argument("--kubeconfig", metavar="FILE", help="default: the pod's own account, else the user's file")
    group.add_argument(
        "--admission-probe", metavar="tcp:PORT", help="port on which a new pod must answer, or none (default: tcp:22)"
    )
    group.add_argument("--signals", metavar="FILE", help="further signals that a host is going away, in YAML")
    group.add_argument(
        "--settle",
        type=durations.time,
        metavar=durations.METAVAR,
        help=f"how long new hosts are collected, to be published together (default: {SETTLE:g})",
    )
    group.add_argument("--node-selector", metavar="LABELS", help="labels of the nodes to watch (default: all nodes)")
    group.add_argument(
        "--exit-with-container",
        metavar="NAME",
        help="end when this container of the own pod ends (without native sidecars)",
    )
    group.add_argument("--own-pod", metavar="NAME", help="the pod this runs in (default: named like this host)")
    group.add_argument(
        "--no-events",
        action="store_true",
        default=None,
        help="write no Events about pods that are not hosts (nor does --once)",
    )
    group.add_argument(
        "--reap-failed",
        action="store_true",
        default=None,
        help="delete failed pods of the job, so that new ones are made (needs the right to; has no effect with --once)",
    )


def _config_parser() -> argparse.ArgumentParser:
    parser = _ConfigParser(prog="hvd-discover", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="options in YAML, or TOML if the name ends in .toml")
    return parser


OWN_OPTIONS = {
    "file": ("watch",),
    "static": ("hosts",),
    "kubernetes": (
        *("namespace", "job", "operator", "selector", "host_name", "cluster_domain", "container", "kubeconfig"),
        *("gpu_resource", "admission_probe", "signals", "settle", "node_selector"),
        *("exit_with_container", "own_pod", "no_events", "reap_failed"),
    ),
}
"""Options that only one source has; --slots goes with every source."""


def _source(options: argparse.Namespace) -> FileSettings | StaticSettings | KubernetesSettings:
    if options.source is None:
        raise UsageError(
            "no source of hosts; give --source kubernetes --job NAME, --source file --watch PATH, "
            "or --source static --hosts a:4,b:4"
        )
    for source, names in OWN_OPTIONS.items():
        given = next((name for name in names if getattr(options, name) is not None), None)
        if source != options.source and given is not None:
            flag = given.replace("_", "-")
            raise UsageError(f"--{flag} does not go with --source {options.source}; leave one of them out")
    if options.source == "kubernetes":
        return _kubernetes(options)
    (wanted,) = OWN_OPTIONS[options.source]
    value = getattr(options, wanted)
    if value is None:
        raise UsageError(f"--source {options.source} needs --{wanted}")
    if options.source == "static":
        return StaticSettings.parse(value, slots=options.slots)
    return FileSettings(watch=_path(value, "--watch"), slots=options.slots)


def _kubernetes(options: argparse.Namespace) -> KubernetesSettings:
    return KubernetesSettings(
        job=options.job or "",
        operator=options.operator or ("custom" if options.selector and not options.job else "mpi"),
        namespace=options.namespace,
        selector=options.selector or "",
        slots=options.slots,
        host_name=options.host_name or "",
        domain=options.cluster_domain or "",
        container=options.container or "",
        gpu_resources=tuple(options.gpu_resource or ()),
        kubeconfig=None if options.kubeconfig is None else _path(options.kubeconfig, "--kubeconfig"),
        probe=parse_probe("tcp:22" if options.admission_probe is None else options.admission_probe),
        signals=None if options.signals is None else _path(options.signals, "--signals"),
        settle=SETTLE if options.settle is None else options.settle,
        node_selector=options.node_selector or "",
        exit_with=options.exit_with_container or "",
        own_pod=options.own_pod or "",
        events=not options.no_events,
        reap=bool(options.reap_failed),
    )


def _path(value: str, option: str) -> Path:
    if not value or "\0" in value:
        raise UsageError(f"{option} {value!r} is not a path")
    return Path.cwd() / value


if __name__ == "__main__":
    sys.exit(main())
