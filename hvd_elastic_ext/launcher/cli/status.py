"""``hvd-elastic status``: what a job does at this moment, in one line.

With ``--pids``, a line for each host follows; ``--pid RANK`` prints one number instead.
Of a job that its launcher did not end, it says what may still run, and what to do about that.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.job_folders import one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.launcher.cli import hosts, orphans
from hvd_elastic_ext.launcher.cli.orphans import AgentState
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.job.interfaces import is_this_machine
from hvd_elastic_ext.launcher.rules.health import host_requests
from hvd_elastic_ext.launcher.state.saved import Saved

Processes = Mapping[str, Sequence[tuple[int | None, int | None]]]
"""By host, rank and pid of each process; None where there is none."""

SAME_COMMAND: Final = "the same `hvd-elastic run` command as before"
HOW_LONG: Final = (
    "to the end of training, or until one of them ends or waits for a new world; then their agents end them all, but "
    "not before --orphan-grace (60 s by default) is over."
)
"""What agents do without a launcher: docs/agent.md, "The lease"."""


def main(argv: Sequence[str]) -> int:
    """Print the line; 1 if no launcher of the job runs. Raises :class:`UsageError` if there is no such job."""
    parser = Parser(prog="hvd-elastic status", description=__doc__.partition(": ")[2].partition("\n")[0])
    parser.add_argument(
        "named", metavar="JOB", nargs="?", help="its name (default: the job here that runs, else the newest)"
    )
    parser.add_argument("--job", metavar="NAME", help="the same as JOB")
    parser.add_argument("--state-dir", metavar="DIR", type=Path, help="the job's folder (default: ./.hvd-elastic/JOB)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pids", action="store_true", help="also the processes of each host, as RANK:PID")
    which.add_argument("--pid", metavar="RANK", type=int, help="only the pid of this rank, for kill or py-spy")
    options = parser.parse_args(argv, argparse.Namespace(do="status"))
    options.job = one_job(options.named, options.job)
    folder = hosts.folder_of(options, os.environ)
    hosts.check(folder)
    more = options.pids or options.pid is not None
    answer = hosts.ask_launcher(folder, {"do": "status", **({"processes": True} if more else {})})
    if answer is None:
        # `kill $(... --pid 1)` would read each number of a sentence as a pid.
        out = sys.stdout if options.pid is None else sys.stderr
        out.write(f"{folder.name}: {_without_launcher(folder)}\n")
        return 1
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    processes = _checked(answer.get("processes"))
    if options.pid is not None:
        sys.stdout.write(f"{_pid_of(options.pid, processes, folder.name, is_this_machine)}\n")
        return 0
    sys.stdout.write(f"{folder.name}: {answer['said']}\n")
    sys.stdout.writelines(f"{line}\n" for line in host_lines(processes))
    return 0


def _checked(processes: object) -> Processes:
    """The processes that an answer names."""
    return processes if isinstance(processes, dict) else {}


def host_lines(processes: Processes) -> Iterator[str]:
    """One line for each host: its processes as RANK:PID, and ``-`` for a process in no world."""
    width = max(map(len, processes), default=0)
    if processes:
        yield f"  {'':{width}}  RANK:PID"
    for host, numbers in processes.items():
        each = (f"{'-' if rank is None else rank}:{'?' if pid is None else pid}" for rank, pid in numbers)
        yield f"  {host:{width}}  {' '.join(each)}"


def _pid_of(rank: int, processes: Processes, job: str, is_here: Callable[[str], bool]) -> int:
    """Raises :class:`UsageError` if there is no such rank here: a pid means another process elsewhere."""
    for host, numbers in processes.items():
        pid = dict(numbers).get(rank)
        if pid is not None and not is_here(host):
            raise UsageError(f"rank {rank} of {job} is on {host}, with pid {pid} there")
        if pid is not None:
            return pid
    raise UsageError(f"{job} has no rank {rank} now; `hvd-elastic status --pids` shows its processes")


def _end_of(saved: Saved) -> Iterator[str]:
    """What was saved of the end of a run: its outcome, and which hosts were blocked by then, and why."""
    yield f"no launcher runs; the job ended: {saved.outcome}" if saved.outcome else "no launcher runs"
    rows = host_requests.rows(hosts.at_the_end(saved, 0.0), (), 0.0)
    if out := [f"{row['name']} ({row['why']})" for row in rows if row["state"] == "blocked"]:
        yield f"blocked then: {', '.join(out)}"


def _without_launcher(folder: Path) -> str:
    """What is known of a job whose launcher does not answer."""
    if (who := state_folder.holder(folder)) is not None:
        return f"{who} has this job, and does not answer yet; ask again, or on that host"
    saved, _ = state_folder.load(folder)
    if saved is None or saved.ended:
        more = f"`hvd-elastic events {folder.name}` shows how it ended"
        return f"no launcher runs; {more}" if saved is None else "; ".join([*_end_of(saved), more])
    run = saved.run or "the last one"
    if not (left := saved.hosts_left):
        return f"no launcher runs; run {run} has not ended, and no host trains: {SAME_COMMAND} continues it"
    key = state_folder.read_key(folder)
    agents = {} if key is None else orphans.agents_here(key)
    return what_is_left(run, {host.name: host.slots for host in left}, agents, is_this_machine)


def what_is_left(run: str, slots: Mapping[str, int], agents: Mapping[str, int], is_here: Callable[[str], bool]) -> str:
    """What may still run of a run whose launcher was killed, how long, and what to do. The last two: see
    :func:`orphans.fates`."""
    fates, words = orphans.agent_states(slots, agents, is_here), []
    for fate, what in (
        (AgentState.LIVE, "its processes still run on"),
        (AgentState.UNKNOWN, "its processes may still train on"),
    ):
        if named := [f"{host}:{slots[host]}" for host in slots if fates[host] is fate]:
            words.append(f"{what} {', '.join(named)}")
    ended = [host for host in slots if fates[host] is AgentState.ENDED]
    if ended:
        words.append(f"nothing of it runs on {', '.join(ended)} any more")
    text = f"no launcher runs, and the last one did not end run {run}: {'; '.join(words)}"
    if len(ended) == len(slots):
        return f"{text}. {SAME_COMMAND} continues it, from its newest checkpoint if it has one".replace(
            ". the", ". The"
        )
    return f"{text}\n  How long: {HOW_LONG}\n  To take them over: {SAME_COMMAND}. To end them: the same, then Ctrl-C."
