"""``hvd-elastic``: one table of commands, each in a module of its own."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext import __version__
from hvd_elastic_ext.core.errors import ElasticError, JobFailed, UsageError, users_mistake
from hvd_elastic_ext.core.printable import printable
from hvd_elastic_ext.io.option_parser import nearest, parser_of
from hvd_elastic_ext.io.threads.writer_thread import discard, open_closed_streams, write_message
from hvd_elastic_ext.launcher.cli import starting

if TYPE_CHECKING:
    import argparse

    from hvd_elastic_ext.install.completion import Completed


LOCAL: Final = "local jobs"
CLUSTER: Final = "jobs on a cluster"
GROUPS: Final = (LOCAL, CLUSTER)
"""Titles in ``--help``, in their order."""


class Command(NamedTuple):
    """``module`` has ``function(argv) -> int``; it is imported only when the command is used. ``group``: one of
    :data:`GROUPS`.
    """

    module: str
    does: str
    function: str = "main"
    group: str = LOCAL


COMMANDS: Final = {
    "run": Command("hvd_elastic_ext.launcher.cli.run", "launch an elastic job"),
    "status": Command("hvd_elastic_ext.launcher.cli.status", "what a job does at this moment, in one line"),
    "stop": Command(
        "hvd_elastic_ext.launcher.cli.stop", "end a job on this machine as Ctrl-C does, and wait for its end"
    ),
    "logs": Command("hvd_elastic_ext.launcher.cli.logs", "the output of a job, of all its ranks or of one"),
    "events": Command("hvd_elastic_ext.report.command", "what happened in a job and why, from its journal"),
    "dashboard": Command("hvd_elastic_ext.dashboard.command", "a live page of jobs, or that page in one file"),
    "hosts": Command("hvd_elastic_ext.launcher.cli.hosts", "see and change which hosts a job may use"),
    "scale": Command("hvd_elastic_ext.launcher.cli.scale", "how many hosts a job asks for, by hand or by its policy"),
    "checkpoints": Command(
        "hvd_elastic_ext.checkpoint.programs.cli", "list, verify, export and prune what a job left on storage"
    ),
    "replay": Command(
        "hvd_elastic_ext.launcher.cli.replay_step", "execute one step of a job again, and print its loss and gradients"
    ),
    "simulate": Command(
        "hvd_elastic_ext.simulate.command", "what a job would get out of hosts that come and go, and which options suit"
    ),
    "doctor": Command("hvd_elastic_ext.launcher.cli.doctor", "what on this machine would break a job, and the remedy"),
    "demo": Command("hvd_elastic_ext.demo.command", "watch a real elastic job on this machine lose and regain hosts"),
    "build-horovod": Command("hvd_elastic_ext.install.build_horovod", "build a wheel of Horovod for this Python"),
    "completion": Command(
        "hvd_elastic_ext.cli", "a script that completes these commands in bash, zsh or fish", "completion"
    ),
    "submit": Command("hvd_elastic_ext.jobs.cli.submit", "make an elastic job on a cluster", group=CLUSTER),
    "preflight": Command(
        "hvd_elastic_ext.jobs.cli.submit", "whether a cluster can run a job, and the remedy", "preflight", CLUSTER
    ),
    "get": Command(
        "hvd_elastic_ext.jobs.cli.get", "a job on a cluster and its pods, and what each waits for", group=CLUSTER
    ),
    "list": Command("hvd_elastic_ext.jobs.cli.get", "all jobs that were submitted to a namespace", "all_jobs", CLUSTER),
    "top": Command("hvd_elastic_ext.jobs.cli.top", "what the pods of a job on a cluster use", group=CLUSTER),
    "attach": Command(
        "hvd_elastic_ext.jobs.cli.attach", "a shell, or a command, in a pod of a job on a cluster", group=CLUSTER
    ),
    "sync": Command(
        "hvd_elastic_ext.jobs.cli.submit", "send a job's code to a launcher's pod that waits for it", "sync", CLUSTER
    ),
    "suspend": Command(
        "hvd_elastic_ext.jobs.cli.changes",
        "suspend a job on a cluster: its pods go until it is resumed",
        "suspend",
        CLUSTER,
    ),
    "resume": Command("hvd_elastic_ext.jobs.cli.changes", "let a suspended job go on", "resume", CLUSTER),
    "wait": Command(
        "hvd_elastic_ext.jobs.cli.changes", "wait for the end, or another state, of a job", "wait", CLUSTER
    ),
    "delete": Command(
        "hvd_elastic_ext.jobs.cli.changes", "delete a job on a cluster and all that belongs to it", "delete", CLUSTER
    ),
    "convert": Command(
        "hvd_elastic_ext.jobs.cli.convert", "turn old manifests and lines of arena into those of today", group=CLUSTER
    ),
    "manifest": Command("hvd_elastic_ext.install.manifest", "list or print manifests for a cluster", group=CLUSTER),
}

CLUSTER_OPTIONS: Final = ("-n", "--namespace", "--kubeconfig")
"""Options that show that a job on a cluster is meant."""
ON_CLUSTERS: Final = {
    "logs": {"module": "hvd_elastic_ext.jobs.cli.logs"},
    "events": {"module": "hvd_elastic_ext.jobs.cli.events"},
    "scale": {"module": "hvd_elastic_ext.jobs.cli.changes", "function": "scale"},
}
"""What such a command is then."""


def _meant(name: str, arguments: Sequence[str]) -> Command:
    """The command, which for some depends on their options, and for ``logs`` also on whether such a job is here."""
    if name == "events" and "--replay" in _options(arguments):
        return COMMANDS[name]._replace(module="hvd_elastic_ext.launcher.cli.replay")
    if name in ON_CLUSTERS and (_names_cluster(arguments) or _not_here(name, arguments)):
        return COMMANDS[name]._replace(**ON_CLUSTERS[name])
    return COMMANDS[name]


def _options(arguments: Sequence[str]) -> set[str]:
    return {each.partition("=")[0] for each in arguments}


def _names_cluster(arguments: Sequence[str]) -> bool:
    return not _options(arguments).isdisjoint(CLUSTER_OPTIONS) or any(each.startswith("-n") for each in arguments)


def _not_here(name: str, arguments: Sequence[str]) -> str:
    """Why ``logs`` without an option of a cluster means one all the same; empty if it does not."""
    if name != "logs" or _names_cluster(arguments):
        return ""
    return str(importlib.import_module(COMMANDS[name].module).not_here(arguments))


def completion(argv: Sequence[str]) -> int:
    """Run ``completion``. Raises :class:`UsageError` for a shell that it does not know."""
    from hvd_elastic_ext.install import completion

    return completion.main(argv, lambda: {name: _completed(name) for name in COMMANDS})


def _completed(name: str) -> Completed:
    """What a command takes; nothing of it is run but the making of its parser."""
    from hvd_elastic_ext.install.completion import Completed, completed

    if name == "build-horovod":  # it is another program
        return Completed(COMMANDS[name].does)
    both = dict.fromkeys((COMMANDS[name], _meant(name, CLUSTER_OPTIONS)))
    found = [completed(each.does, _parser(name, each), cluster=".jobs.cli." in each.module) for each in both]
    options = {option.names: option for each in found for option in each.options}
    return found[-1]._replace(options=tuple(options.values()))


def _parser(name: str, command: Command) -> argparse.ArgumentParser:
    module = importlib.import_module(command.module)
    if name == "run":
        return parser_of(lambda: module.run_options.parse((), {}))
    return parser_of(lambda: getattr(module, command.function)(()))


def usage() -> str:
    """The top-level help: the commands in their groups. With -n, those of :data:`ON_CLUSTERS` mean a cluster."""
    width = max(map(len, COMMANDS))
    lines = ["usage: hvd-elastic COMMAND …"]
    for group in GROUPS:
        there = [(name, command.does) for name, command in COMMANDS.items() if command.group == group]
        lines += ["", f"{group}:", *(f"  {name:<{width}}  {does}" for name, does in there)]
    *first, last = sorted(ON_CLUSTERS)
    both = f"{', '.join(first)} and {last}"
    return "\n".join(
        [
            *lines,
            "",
            f"With -n NAMESPACE, {both} act on a job on a cluster.",
            "hvd-elastic COMMAND --help says more; --version, --help",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. A user's mistake and an error raised on purpose are a line and an exit code, not a traceback."""
    open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    program = f"hvd-elastic {name}" if name in COMMANDS else "hvd-elastic"
    try:
        code = _command(name, arguments[1:]) if name in COMMANDS else _no_command(name, given=bool(arguments))
        sys.stdout.flush()  # here, where a failure can be told
    except ElasticError as error:
        line = error.line if isinstance(error, JobFailed) else str(error)
        write_message(sys.stderr, f"{program}: {printable(line)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        write_message(sys.stderr, f"{program}: stopped by SIGINT\n")
        return 130  # what the shell reports for SIGINT
    except BrokenPipeError:
        discard(sys.stdout)
        return 141  # the reader of our output went away; what the shell reports for SIGPIPE
    except OSError as error:
        why = users_mistake(error) or _without_folder()
        if why is None:
            raise
        if error.filename is None:
            discard(sys.stdout)
        write_message(sys.stderr, f"{program}: {why}\n")
        return 1
    return code


def _without_folder() -> str | None:
    """One line if the current folder has been removed: then many calls fail, without a name."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the current folder has been removed; cd to another one"
    return None


def _command(name: str, arguments: Sequence[str]) -> int:
    try:
        with starting.startup_lines(sys.stderr, arguments) if name == "run" else contextlib.nullcontext():
            meant = _meant(name, arguments)
            return int(getattr(importlib.import_module(meant.module), meant.function)(arguments))
    except UsageError as error:
        if not (why := _not_here(name, arguments)) or str(error).startswith(f"{arguments[0]} "):
            raise
        error.args = (f"{why}; looked for on a cluster, too: {error}; -n NAMESPACE names its namespace",)
        raise
    except SystemExit as end:
        if end.code:
            raise
        return 0  # the help was printed


def _no_command(name: str, *, given: bool) -> int:
    """Answer a first word that is not a command."""
    if name in ("-h", "--help"):
        sys.stdout.write(usage() + "\n")
        return 0 if given else 2
    if name == "--version":
        sys.stdout.write(f"hvd-elastic {__version__}\n")
        return 0
    hint = _run_hint(name) or nearest(name, [*COMMANDS, "--help", "--version"])
    raise UsageError(f"there is no command {name!r}; {hint}\n`hvd-elastic --help` lists all commands")


def _run_hint(name: str) -> str:
    """What to write for a script or a program that is meant to run; empty for anything else."""
    if Path(name).is_file() or (name.startswith("python") and shutil.which(name) is not None):
        return f"to run it, write: hvd-elastic run {name}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
