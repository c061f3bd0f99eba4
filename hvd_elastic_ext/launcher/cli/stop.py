"""``hvd-elastic stop``: end a job on this machine as Ctrl-C does, and wait until it has ended.

The launcher is asked over the socket in its job's folder, so no process but that job's launcher is ever told to end,
and no pid is used.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import ElasticError, Permanent, UsageError
from hvd_elastic_ext.core.printable import printable
from hvd_elastic_ext.io.job_folders import last_records, one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.wait_line import WaitLine
from hvd_elastic_ext.launcher.cli import hosts, status
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.job.stop_lines import CANNOT_GO_ON

LOOK_S: Final = 0.1
"""Pause between two looks whether the launcher has ended."""
ASK_S: Final = 1.0
"""Time between two questions what the job does."""
ON_A_CLUSTER: Final = (
    "a job on a cluster is ended by `hvd-elastic suspend NAME` (`resume` goes on with it) or `hvd-elastic delete NAME`"
)


def main(argv: Sequence[str]) -> int:
    """Stop the job. Return 0 once it has ended, 1 if it failed. Raises :class:`UsageError` if there is no such job,
    :class:`Permanent` if no launcher of it runs or answers.
    """
    options = _parsed(argv)
    folder = _folder(options)
    hosts.check(folder)
    who = state_folder.holder(folder)
    answer = _asked(folder)
    if answer is None:
        raise Permanent(f"{folder.name}: {status.without_launcher(folder)}")
    if "error" in answer:
        raise UsageError(f"{folder.name}: {answer['error']}; its launcher may be of an older version: stop it there")
    began_t = time.time()
    happens = str(answer.get("said") or "the job is ending already")
    _write(f"{folder.name}: {happens.removeprefix('`hvd-elastic stop`: ')}")
    try:
        line = WaitLine(sys.stdout)
        wait_for_end(lambda: _runs(folder, who), lambda: _status(folder), line, name=folder.name, sleep=time.sleep)
    except KeyboardInterrupt:
        sys.stderr.write(f"hvd-elastic stop: no longer waits; {folder.name} still ends\n")
        return 130
    return _ended(folder, answer, began_t)


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="hvd-elastic stop",
        description="End a job on this machine as Ctrl-C does: it makes a last checkpoint, its processes end, and the "
        "same `hvd-elastic run` command goes on from there. Waits until it has ended. Interrupting the wait changes "
        "nothing for the job.",
        epilog=ON_A_CLUSTER + ".",
    )
    parser.add_argument("named", metavar="JOB", nargs="?", help="its name; it is never guessed")
    parser.add_argument("--job", metavar="NAME", help="the same as JOB")
    parser.add_argument("--state-dir", metavar="DIR", type=Path, help="the job's folder (default: ./.hvd-elastic/JOB)")
    for cluster in (("-n", "--namespace"), ("--kubeconfig",)):
        parser.add_argument(*cluster, dest="cluster", help=argparse.SUPPRESS)
    options = parser.parse_args(argv, argparse.Namespace(do="stop"))
    options.job = one_job(options.named, options.job)
    if options.cluster is not None:
        raise UsageError(f"stop is for a job on this machine; {ON_A_CLUSTER}")
    return options


def _folder(options: argparse.Namespace) -> Path:
    """The folder of the job that is named. Raises :class:`UsageError` if none is."""
    named = (options.job, options.state_dir, *(os.environ.get(f"HVD_ELASTIC_{name}") for name in ("JOB", "STATE_DIR")))
    if not any(named):
        running = [path.name for path in sorted(hosts.ROOT.glob("*")) if state_folder.holder(path) is not None]
        here = "; running here: " + ", ".join(running) if running else f"; no job runs in ./{hosts.ROOT}"
        raise UsageError(f"name the job: hvd-elastic stop {running[0] if len(running) == 1 else 'JOB'}{here}")
    try:
        return hosts.folder_of(options, os.environ)
    except UsageError as error:
        raise UsageError(f"{error}; {ON_A_CLUSTER}") from None


def _asked(folder: Path) -> Mapping[str, Any] | None:
    """The launcher's answer; None if there is no launcher. Raises :class:`Permanent` if there is one without an
    answer."""
    deadline = time.monotonic() + hosts.LISTEN_TIMEOUT_S
    while (answer := hosts.ask_launcher(folder, {"do": "stop"})) is None:
        who = state_folder.holder(folder)
        if who is None:
            return None
        if time.monotonic() >= deadline:
            raise Permanent(
                f"{folder} is in use by {who}, which does not listen from here: it starts or ends just now, or runs on "
                "another host; nothing is stopped; ask again, or on that host"
            )
        time.sleep(hosts.RETRY_S)
    return answer


def _runs(folder: Path, who: str | None) -> bool:
    """Whether the launcher that was asked still runs. Without locks, its socket tells."""
    if who is not None:
        return state_folder.holder(folder) == who
    return _status(folder) is not None


def _status(folder: Path) -> str | None:
    """What the launcher does now; None without an answer."""
    try:
        answer = hosts.ask_launcher(folder, {"do": "status"})
    except ElasticError:
        return None
    return None if answer is None else str(answer.get("said"))


def wait_for_end(
    runs: Callable[[], bool],
    does: Callable[[], str | None],
    line: WaitLine,
    *,
    name: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when ``runs()`` is no longer true. Meanwhile ``line`` tells for how long, and what the job does."""
    began = asked_at = clock()
    doing = ""
    try:
        while runs():
            if (now := clock()) - asked_at >= ASK_S:
                asked_at, doing = now, printable(does() or "the launcher does not answer now")
            line.show(f"{name}: ending for {now - began:.0f} s: {doing}")
            sleep(LOOK_S)
    finally:
        line.clear()


def _ended(folder: Path, answer: Mapping[str, Any], began_t: float) -> int:
    """Say how the job has ended, and how it goes on. Return the exit code."""
    journal, run = Path(str(answer["journal"])), answer.get("run")
    end = last_records(journal, "finished").get("finished")
    code = None if end is None or end.t < began_t - 1.0 else end.get("code")
    saved, _ = state_folder.load(folder)
    how = saved.outcome if saved is not None and saved.run == run else None
    if end is not None and code is not None:
        how = str(end.get("reason")).partition("\n")[0] if how is None else how
    shown = "its launcher has ended without a word in its journal" if how is None and code is None else how
    _write(f"{folder.name} has ended{'' if code is None else f' with exit code {code}'}: {shown}")
    if code != 0 and CANNOT_GO_ON not in (shown or "") and (argv := answer.get("argv")):
        _write(f"to go on: cd {shlex.quote(str(answer['cwd']))} && {shlex.join(['hvd-elastic', *map(str, argv)])}")
    return 1 if code in (1, 2) or (code is None and how is None) else 0


def _write(line: str) -> None:
    """Write a line. What a job says of itself may have any characters."""
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()
