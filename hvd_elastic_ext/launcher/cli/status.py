"""``hvd-elastic status``: what a job does at this moment, in one line.

With ``--pids``, a line for each host follows; ``--pid RANK`` prints one number instead; ``--json`` prints one object
(docs/job-commands.md), and ``--watch`` goes on until the job ends.
Of a job that its launcher did not end, it says what may still run, and what to do about that.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.events import end_of
from hvd_elastic_ext.core.journal import FILE
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.printable import fitting
from hvd_elastic_ext.io.job_folders import last_records, one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.wait_line import ERASE, in_place
from hvd_elastic_ext.launcher.cli import hosts, no_answer
from hvd_elastic_ext.launcher.cli.no_answer import AgentState
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.health import host_requests
from hvd_elastic_ext.launcher.job.addresses import is_this_machine

Processes = Mapping[str, Sequence[Sequence[int | None]]]
"""By host, rank and pid of each process, None where there is none; and its call, which older launchers do not name."""
SAME_COMMAND: Final = "the same `hvd-elastic run` command as before"
HOW_LONG: Final = (
    "to the end of training, or until one of them ends or waits for a new world; then their agents end them all, but "
    "not before --orphan-grace (60 s by default) is over."
)
"""What agents do without a launcher: docs/agent.md, "The lease"."""


def main(argv: Sequence[str]) -> int:
    """Print the line; 1 if no launcher of the job runs. With ``--watch``, return the exit code of the job. Raises
    :class:`UsageError` if there is no such job.
    """
    options = _parsed(argv)
    folder = hosts.folder_of(options, os.environ)
    hosts.check(folder)
    if options.watch:
        return watch(
            lambda journal: look(folder, journal), sys.stdout.write, as_json=options.json, terminal=in_place(sys.stdout)
        )
    if options.json:
        seen = look(folder, None)
        sys.stdout.write(f"{to_text(seen)}\n")
        return 0 if seen["running"] else 1
    more = options.pids or options.pid is not None
    answer = hosts.ask_launcher(folder, {"do": "status", **({"processes": True} if more else {})})
    if answer is None:
        # `kill $(... --pid 1)` would read each number of a sentence as a pid.
        out = sys.stdout if options.pid is None else sys.stderr
        out.write(f"{folder.name}: {without_launcher(folder)}\n")
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


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="hvd-elastic status", description="Say what a job does at this moment, in one line.")
    parser.add_argument(
        "named", metavar="JOB", nargs="?", help="its name (default: the job here that runs, else the newest)"
    )
    parser.add_argument("--job", metavar="NAME", help="the same as JOB")
    parser.add_argument("--state-dir", metavar="DIR", type=Path, help="the job's folder (default: ./.hvd-elastic/JOB)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pids", action="store_true", help="also the processes of each host, as RANK:PID")
    which.add_argument("--pid", metavar="RANK", type=int, help="only the pid of this rank, for kill or py-spy")
    which.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="go on until the job ends: each second on a terminal, else a line when something changes",
    )
    options = parser.parse_args(argv, argparse.Namespace(do="status"))
    options.job = one_job(options.named, options.job)
    if options.watch and (options.pids or options.pid is not None):
        parser.error("--watch shows the line or, with --json, the object; leave --pids and --pid out")
    return options


# --- for programs, and as time passes


SCHEMA: Final = (
    *("t", "job", "folder", "running", "state", "said", "launcher", "run", "journal", "output"),
    *("generation", "size", "shares", "spares", "step", "steps_per_s", "wait", "checkpoint"),
    *("hosts", "processes", "code", "reason"),
)
"""The keys of :func:`look`, all of which are always there: docs/job-commands.md describes them."""
LOST, UNKNOWN = "lost", "unknown"
WATCH_S: Final = 1.0
CHANGES: Final = ("running", "state", "generation", "size", "checkpoint", "code")
"""Keys of which a change is worth a line. Steps, speeds and the seconds of a wait change all the time."""


def look(folder: Path, journal: str | None, *, wall: Callable[[], float] = time.time) -> dict[str, Any]:
    """All that is known of a job now, with the keys of :data:`SCHEMA`. ``journal``: where its launcher writes that, if
    it is known. Raises :class:`Permanent` if a launcher runs and does not answer."""
    seen: dict[str, Any] = dict.fromkeys(SCHEMA)
    seen |= {"t": round(wall(), 3), "job": folder.name, "folder": str(folder.absolute()), "hosts": [], "processes": []}
    answer = hosts.ask_launcher(folder, {"do": "status", "processes": True, "present": True})
    holder = state_folder.holder(folder)
    if answer is None:
        return seen | _without_answer(folder, Path(journal or folder / FILE), runs=holder is not None)
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    listed = hosts.ask_launcher(folder, {"do": "list"}) or {}
    processes = _checked(answer.get("processes"))
    pid, _, host = (holder or "").removeprefix("pid ").partition(" on host ")
    return seen | {
        **{key: value for key, value in dict(answer.get("present") or {}).items() if key in seen},
        "running": True,
        "said": answer["said"],
        "launcher": {"pid": int(pid), "host": host} if pid.isdigit() else None,
        "hosts": listed.get("hosts", []),
        "processes": [
            {"host": host, "rank": each[0], "pid": each[1], "call": each[2] if len(each) > 2 else None}
            for host, numbers in processes.items()
            for each in numbers
        ],
    }


def _without_answer(folder: Path, journal: Path, *, runs: bool) -> dict[str, Any]:
    """What is known without an answer. ``runs``: a launcher holds the folder, and does not listen (yet)."""
    records = {} if runs else last_records(journal, "finished", "started")
    started, end = records.get("started"), records.get("finished")
    saved, _ = (None, False) if runs else state_folder.load(folder)
    code = None if end is None else end.get("code")
    code = code if isinstance(code, int) else None
    state = UNKNOWN if saved is None and started is None else LOST
    if runs:
        state = "starts"
    elif code is not None:
        state = end_of(code)
    path, step = (None, None) if saved is None or saved.stored is None else (saved.stored.path, saved.stored.step)
    return {
        "running": runs,
        "state": state,
        "said": without_launcher(folder),
        "run": None if saved is None else saved.run,
        "journal": str(journal.absolute()) if journal.exists() else None,
        "output": None if started is None else started.get("output"),
        "checkpoint": None if path is None else {"path": path, "step": step},
        "code": code,
        "reason": (saved.outcome if saved is not None else None) if end is None else end.get("reason"),
    }


def watch(
    seen: Callable[[str | None], Mapping[str, Any]],
    write: Callable[[str], object],
    *,
    as_json: bool,
    terminal: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show the job until it ends; return its exit code, 1 if that is unknown. On a terminal, the line is written again
    in place; elsewhere, and as JSON, something is written when something changes. ``seen`` is given the journal."""
    before: object = None
    redraws, journal, answered = terminal and not as_json, None, False

    def show(line: str, key: object, *, stays: bool) -> None:
        nonlocal before
        if redraws and not stays:
            line = fitting(line.partition("\n")[0], shutil.get_terminal_size().columns - 1)
            write(f"{ERASE}{line}")
        elif key != before:
            write(f"{ERASE if redraws else ''}{line}\n")
        sys.stdout.flush()
        before = key

    try:
        while True:
            try:
                now = seen(journal)
            except UsageError:
                raise
            except Permanent as error:  # a launcher that is busy or stopped answers later
                if not as_json:
                    show(str(error), str(error), stays=False)
            else:
                journal = now["journal"] or journal
                if now["launcher"] is not None or not (answered and now["running"]):
                    line = to_text(now) if as_json else f"{now['job']}: {now['said']}"
                    show(line, _key(now), stays=not now["running"])
                answered = answered or now["launcher"] is not None
                if not now["running"]:
                    return now["code"] if isinstance(now["code"], int) else 1
            sleep(WATCH_S)
    except KeyboardInterrupt:
        write("\n" if redraws else "")
        return 130


def _key(seen: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a job is worth a line when it changes. Pure."""
    wait = seen["wait"]
    what = None if wait is None else re.sub(r"\d+(\.\d+)?", "#", str(wait["what"]))
    states = tuple((row.get("name"), row.get("state")) for row in seen["hosts"])
    return (what, states, *(str(seen[key]) for key in CHANGES))


# --- for people


def _checked(processes: object) -> Processes:
    """The processes that an answer names."""
    return processes if isinstance(processes, dict) else {}


def host_lines(processes: Processes) -> Iterator[str]:
    """One line for each host: its processes as RANK:PID, and ``-`` for a process that is not in a world."""
    width = max(map(len, processes), default=0)
    if processes:
        yield f"  {'':{width}}  RANK:PID"
    for host, numbers in processes.items():
        each = (f"{'-' if rank is None else rank}:{'?' if pid is None else pid}" for rank, pid, *_ in numbers)
        yield f"  {host:{width}}  {' '.join(each)}"


def _pid_of(rank: int, processes: Processes, job: str, is_here: Callable[[str], bool]) -> int:
    """Raises :class:`UsageError` if there is no such rank here: a pid means another process elsewhere."""
    for host, numbers in processes.items():
        pid = {each[0]: each[1] for each in numbers}.get(rank)
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


def without_launcher(folder: Path) -> str:
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
    agents = {} if key is None else no_answer.agents_here(key)
    return what_is_left(run, {host.name: host.slots for host in left}, agents, is_this_machine)


def what_is_left(run: str, slots: Mapping[str, int], agents: Mapping[str, int], is_here: Callable[[str], bool]) -> str:
    """What may still run of a run whose launcher was killed, how long, and what to do. The last two: see
    :func:`orphans.fates`."""
    fates, words = no_answer.agent_states(slots, agents, is_here), []
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
