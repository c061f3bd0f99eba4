"""``hvd-elastic hosts``: see and change which hosts a job may use, while it runs or before it does."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.journal import FOLDERS
from hvd_elastic_ext.core.json_text import finite
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.io import ownership, tables
from hvd_elastic_ext.io.job_folders import no_job, one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.launcher.cli import no_answer
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.health import host_requests, ledger_json
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.job import admin_socket

ROOT: Final = Path(FOLDERS)
CHANGING: Final = ("block", "clear", "scale", "stop")
"""Commands that change a job: they never use the newest of several jobs. Without a name, the first three mean the only
job here, or the only one that runs, and `stop` none at all."""
LISTEN_TIMEOUT_S: Final = 3.0
"""Longest time from the lock of the folder until the launcher listens."""
RETRY_S: Final = 0.1
_NO_LAUNCHER: Final = "no launcher runs; the next one will apply this"


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic hosts``."""
    where = Parser(add_help=False)
    where.add_argument("--job", metavar="NAME", help="the job, if several have a folder here")
    where.add_argument("--state-dir", metavar="DIR", type=Path, help="the job's folder (default: ./.hvd-elastic/JOB)")
    options = Parser(
        prog="hvd-elastic hosts",
        description="See and change which hosts a job may use. Works on a running job; without one, on the state "
        "that the next launcher of the job reads.",
    )
    commands = options.add_subparsers(dest="do", metavar="COMMAND", required=True)
    listing = commands.add_parser(
        "list", parents=[where], help="hosts, which of them are blocked, why and for how long"
    )
    listing.add_argument("named", metavar="JOB", nargs="?", help="the job's name, as with --job")
    listing.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    changes: dict[str, Any] = {"parents": [where], "surplus": "a job is named with --job NAME"}
    block = commands.add_parser("block", **changes, help="do not use a host until it is cleared")
    block.add_argument("host", metavar="HOST", help="a host, or a node under pods")
    block.add_argument(
        "--for",
        dest="seconds",
        type=durations.time,
        metavar=durations.METAVAR,
        help="how long (default: until cleared)",
    )
    block.add_argument("--reason", metavar="TEXT", default="", help="for `hosts list` and the journal")
    clear = commands.add_parser("clear", **changes, help="remove all strikes and blocks of a host")
    clear.add_argument("host", metavar="HOST", help="a host, or a node under pods")
    return options


def main(argv: Sequence[str]) -> int:
    """Run one command. Raises :class:`UsageError`, one line, for invalid arguments."""
    options = parser().parse_args(argv)
    options.job = one_job(getattr(options, "named", None), options.job)
    request = _request(options)
    folder = folder_of(options, os.environ)
    answer = answer_of(folder, request)
    if "hosts" in answer:
        rows = finite(answer["hosts"])
        text = json.dumps(rows, indent=1, allow_nan=False) if options.output == "json" else table(rows)
        sys.stdout.write(text + "\n")
        if refused := answer.get("refused"):
            sys.stderr.write(f"hvd-elastic hosts: {external_text(str(refused))}; the hosts before it are kept\n")
    else:
        sys.stdout.write(f"{answer['said']}\n")
    return 0


def _request(options: argparse.Namespace) -> dict[str, Any]:
    if options.do == "list":
        return {"do": "list"}
    request: dict[str, Any] = {"do": options.do, "host": host_requests.checked_name(options.host)}
    if options.do == "block":
        request["for"] = None if options.seconds is None else _checked(options.seconds)
        request["reason"] = host_requests.checked_reason(options.reason)
    return request


def _checked(seconds: float) -> float:
    if not 0 < seconds <= host_requests.MAX_FOR_S:
        raise UsageError(f"--for is {seconds:g} s; give a time above 0, {host_requests.MAX_FOR_S / 86400:g}d at most")
    return seconds


def folder_of(options: argparse.Namespace, environ: Mapping[str, str]) -> Path:
    """The job's folder: the given one, else that of the only job here, else that of the only one that runs.

    If none of these is known, :data:`CHANGING` commands raise :class:`UsageError`, and others use the newest job.
    """
    named = options.state_dir or environ.get("HVD_ELASTIC_STATE_DIR")
    job = options.job or environ.get("HVD_ELASTIC_JOB")
    if named is None and job is not None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", job):
            raise UsageError(f"{job!r} is not a job's name; write letters, digits, '.', '_' and '-', as --job of `run`")
        named = ROOT / job
        if not named.is_dir():
            raise UsageError(no_job(job, [path.name for path in ROOT.glob("*") if path.is_dir()]))
    if named is not None:
        if not Path(named).is_dir():
            raise UsageError(f"{named} is not a job's folder; give the --job or --state-dir that `hvd-elastic run` has")
        return Path(named)
    found = sorted(path for path in ROOT.glob("*") if path.is_dir())
    running = [path for path in found if state_folder.holder(path) is not None]
    for only in (found, running):
        if len(only) == 1:
            return only[0]
    if found and options.do not in CHANGING:
        return max(running or found, key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError(f"no job was started here: there is none in ./{ROOT}; name its folder with --state-dir DIR")
    there = ", ".join(path.name + (" (runs)" if path in running else "") for path in found)
    raise UsageError(f"which job? Give --job NAME or --state-dir DIR; in ./{ROOT}: {there}")


def answer_of(folder: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The launcher's answer; without a launcher, an answer from its saved state."""
    check(folder)
    deadline = time.monotonic() + LISTEN_TIMEOUT_S
    while (answer := ask_launcher(folder, request)) is None:
        who = state_folder.holder(folder)
        if who is None:
            return _without_launcher(folder, request)
        if time.monotonic() >= deadline:
            raise Permanent(f"{folder} is in use by {who}, which cannot be asked from here; ask on that host")
        time.sleep(RETRY_S)
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    return answer


def check(folder: Path) -> None:
    """Raises :class:`UsageError` for a folder that is not the user's own; for another user's job it names that user."""
    try:
        state_folder.check(folder)
    except UsageError:
        owner = folder.stat().st_uid
        if owner in (0, os.geteuid()):
            raise
        name = ownership.name_of_user(owner)
        raise UsageError(
            f"{folder} belongs to user {name}; give this command as that user, with sudo -u {name}"
        ) from None


def ask_launcher(folder: Path, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The launcher's answer; None if no launcher listens. Raises :class:`Permanent` if it does not answer in time."""
    reason, stays = no_answer.why(state_folder.holder(folder))
    if stays:
        raise Permanent(f"{folder}: {reason}")
    try:
        return admin_socket.ask(folder / state_folder.SOCKET, request, timeout=no_answer.ANSWER_S)
    except (FileNotFoundError, ConnectionError):
        return None
    except (TimeoutError, BlockingIOError):
        applied = "; the launcher may still apply this request" if request["do"] in CHANGING else ""
        raise Permanent(f"{folder}: {no_answer.why(state_folder.holder(folder))[0]}{applied}") from None
    except PermissionError:
        raise UsageError(f"{folder}: only the user who runs the job may ask its launcher") from None
    except (OSError, ValueError) as error:
        raise Permanent(f"{folder}: the launcher does not answer ({error})") from None


def _without_launcher(folder: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    now, wall = time.monotonic(), time.time()
    if request["do"] == "list":
        saved, _ = state_folder.load(folder)
        what, ledger = "this is what the last one saved", _ledger(saved, now=now, wall=wall)
        if saved is None:
            what = "there is no saved state that can be read"
        if saved is not None and saved.ended:
            outcome = saved.outcome or "its journal says how"
            what = f"the job ended ({outcome}); hosts as they were then; a new run starts without strikes"
            ledger = at_the_end(saved, now)
        sys.stderr.write(f"hvd-elastic hosts: no launcher runs; {what}\n")
        return host_requests.answer(request, ledger, hosts=(), now=now).answer
    with state_folder.StateDir(folder) as held:
        saved = held.load() or Saved()
        before = _ledger(saved, now=now, wall=wall)
        after, answer = host_requests.answer(request, before, hosts=(), now=now)
        if after is before:
            return answer
        if not held.save(replace(saved, at=wall, ledger=ledger_json.as_saved(after, now))):
            raise Permanent(f"{folder}: nothing could be saved there, so nothing is changed")
    return {"said": f"{answer['said']} ({_NO_LAUNCHER})"}


def at_the_end(saved: Saved, now: float) -> HealthLedger:
    """The ledger of a run that has ended, as it was then: its cooldowns do not pass any more."""
    return ledger_json.continued(saved.ledger, now, passed_s=0.0)


def _ledger(saved: Saved | None, *, now: float, wall: float) -> HealthLedger:
    if saved is None:
        return HealthLedger()
    known = ledger_json.by_hand(saved.ledger) if saved.ended else saved.ledger
    return ledger_json.continued(known, now, passed_s=wall - saved.at)


def table(hosts: Sequence[Mapping[str, Any]]) -> str:
    """Rows of a list answer for people."""
    if not hosts:
        return "no host is blocked, and none has a strike"
    return tables.plain(("HOST", "SLOTS", "STATE", "STRIKES", "SINCE", "UNTIL", "WHY"), map(_cells, hosts)).rstrip("\n")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    slots = "" if row["slots"] is None else f"{len(row['usable'])}/{row['slots']}"
    held = row["state"] in ("blocked", "in part")
    until = "" if not held else "cleared" if row["left_s"] is None else f"in {host_requests.duration(row['left_s'])}"
    since_s = row.get("since_s") if held else None  # an earlier launcher does not know it
    since = "" if since_s is None else f"{host_requests.duration(since_s)} ago"
    in_use = row["published"] or row["slots"] is not None
    name = row["name"] if in_use else f"({row['kind']} {row['name']})"
    return (name, slots, row["state"], str(row["strikes"] or ""), since, until, row["why"])
