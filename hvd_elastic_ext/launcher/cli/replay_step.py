"""``hvd-elastic replay JOB --step N``: execute one recorded step of a job again, for debugging.

Nothing is asked of the job, and nothing is written. Its checkpoints have the weights, and the notes of how the steps
after each were done (:mod:`~hvd_elastic_ext.core.recorded_steps`). A checkpoint is read into memory of a new process,
as into that of a job that resumes, and the script's own loop does the rest
(:mod:`hvd_elastic_ext.worker.replay.single`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.checkpoint.archive import catalog, read
from hvd_elastic_ext.checkpoint.archive.read import Checkpoint
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.format.manifest import LOCAL
from hvd_elastic_ext.checkpoint.programs import checkpoint_requests
from hvd_elastic_ext.checkpoint.stores.store import Store, open_store
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.engines import DEFAULT
from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.slot_protocol import COLLECTIVES, COMMITS
from hvd_elastic_ext.core.printable import printable
from hvd_elastic_ext.core.recorded_steps import REQUEST, Noted, Way, head_of, notes_in, ranges_of, way_to, ways
from hvd_elastic_ext.io import process_tree, tables
from hvd_elastic_ext.io.job_folders import one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.launcher.cli import hosts
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.folder.state_folder import RecordedProgram

_OF_A_JOB: Final = re.compile(
    r"HVD_ELASTIC_.*|HOROVOD_(ELASTIC|HOSTNAME|RANK|SIZE|(LOCAL|CROSS)_(RANK|SIZE)|GLOO_RENDEZVOUS.*|GLOO_IFACE)"
    r"|TORCHELASTIC_.*|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|OMPI_.*|PMIX?_.*"
)
"""Variables by which a process finds its world: this one has a world of its own."""
_SCRIPTS: Final = (".py", ".sh")
_SIDES: Final = 2


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic replay``."""
    options = Parser(
        prog="hvd-elastic replay",
        description="Execute one step of a job again as it was, in a process of its own, and print its loss, the norm "
        "of each parameter's gradient, and its samples. The job must have been started with --replay and "
        "--checkpoint-every: steps between two of its checkpoints can be executed. The job may run meanwhile; nothing "
        "of it changes.",
        epilog="The job's own script is run from its beginning, up to the optimizer's step N. What the script itself "
        "writes before that (files, logs, requests to a service) is written again, and is not undone: this process is "
        "rank 0 of 1. Its output goes to standard error. CUDA_VISIBLE_DEVICES chooses another device than that of the "
        "job.",
    )
    options.add_argument("named", metavar="JOB", nargs="?", help="its name (default: the job here that runs, or ran)")
    options.add_argument("--job", metavar="NAME", help="the same as JOB")
    options.add_argument("--state-dir", metavar="DIR", type=Path, help="the job's folder (default: ./.hvd-elastic/JOB)")
    options.add_argument("--step", metavar="N", type=int, help="the step (default: print which ones there are)")
    options.add_argument("--json", action="store_true", help="print JSON")
    return options


def main(argv: Sequence[str]) -> int:
    """Execute a step, and print what it was. Raises :class:`UsageError` for a job or step that cannot be executed,
    :class:`Permanent` if the script does not come to it."""
    options = parser().parse_args(argv, argparse.Namespace(do="replay"))
    options.job = one_job(options.named, options.job)
    folder = hosts.folder_of(options, os.environ)
    hosts.check(folder)
    program, place = _program(folder)
    store = open_store(place)
    found = ways(_noted(store))
    if options.step is None:
        _print_ranges(folder.name, found, as_json=options.json)
        return 0
    way = way_to(options.step, found)
    if way is None:
        raise UsageError(f"{folder.name}: step {options.step} cannot be executed again: {_available(found)}")
    _check_here(folder.name, program)
    report = _executed(program, store, way, options.step)
    if "error" in report:
        raise Permanent(f"{folder.name}: step {options.step} was not executed: {printable(str(report['error']))}")
    report = {"job": folder.name, "checkpoint": way.base.name, "checkpoint_step": way.base.step, **report}
    sys.stdout.write((json.dumps(report, indent=1, allow_nan=False) if options.json else shown(report)) + "\n")
    return 0


# --- what there is


def _program(folder: Path) -> tuple[RecordedProgram, str]:
    """What the job runs, and where its checkpoints are. Raises :class:`UsageError` for one without them, or notes."""
    program = state_folder.recorded_program(folder)
    if program is None:
        raise UsageError(f"{folder.name}: was not started with --replay, so no step of it was noted")
    if program.adopts:
        raise UsageError(f"{folder.name}: was started with --adopt, with which single steps cannot be executed again")
    if program.checkpoints is None:
        raise UsageError(
            f"{folder.name}: makes no checkpoints, and steps are executed from one on; start it with --checkpoint-every"
        )
    return program, program.checkpoints


def _noted(store: Store) -> Iterator[Noted]:
    """The complete checkpoints with notes."""
    for entry in catalog.listing(store):
        if entry.whole and not entry.lacks and entry.step is not None:
            with contextlib.suppress(Missing, Damaged):  # a job that runs removes old ones meanwhile
                if (notes := _notes(read.opened(store, entry.name), entry.step)) is not None:
                    yield Noted(entry.name, entry.identity, entry.call, entry.step, notes)


def _notes(checkpoint: Checkpoint, step: int) -> str | None:
    """The notes of the rank that has most: one that came later was not there for the first of them."""
    found = []
    for file in checkpoint.manifest.files:
        if file.kind == LOCAL and (local := checkpoint.local(file.number)) is not None:
            found.append(notes_in(trees.decode_value(local), step=step))
    return min(filter(None, found), key=lambda notes: head_of(notes).began, default=None)


def _available(found: Sequence[Way]) -> str:
    """Which steps can be executed, in words."""
    spans = [f"{steps.start} to {steps.stop - 1}" for steps in ranges_of(found)]
    if not spans:
        return "no step can; it takes two checkpoints of the job, with the notes of the steps between them"
    return f"steps {' and '.join(filter(None, (', '.join(spans[:-1]), spans[-1])))} can"


def _print_ranges(name: str, found: Sequence[Way], *, as_json: bool) -> None:
    if as_json:
        text = to_text({"job": name, "steps": [[steps.start, steps.stop - 1] for steps in ranges_of(found)]})
    else:
        text = f"{name}: which steps can be executed again: {_available(found)}"
    sys.stdout.write(f"{text}\n")


def _check_here(name: str, program: RecordedProgram) -> None:
    """Raise :class:`UsageError` if this machine lacks the job's script, program or folder."""
    cwd = Path(program.cwd)
    if not cwd.is_dir():
        raise UsageError(f"{name}: this machine has no folder {cwd}, where the job runs; give the command there")
    script = next((word for word in program.command if word.endswith(_SCRIPTS)), None)
    if script is not None and not (cwd / script).is_file():
        raise UsageError(f"{name}: this machine has no {cwd / script}, which the job runs; give the command there")
    first = program.command[0]
    if shutil.which(str(cwd / first) if os.sep in first else first) is None:
        raise UsageError(f"{name}: this machine has no {first}, which the job runs; give the command there")
    if absent := [secret for secret in program.secrets if secret not in os.environ]:
        raise UsageError(
            f"{name}: the job got {', '.join(absent)} on its command line, and secrets are not kept; set it"
        )


# --- the process


def _executed(program: RecordedProgram, store: Store, way: Way, step: int) -> Mapping[str, Any]:
    """Execute a step in a process of its own; what it reports."""
    with contextlib.ExitStack() as stack:

        def memory(name: str) -> int:
            descriptor = os.memfd_create(f"hvd-elastic-{name}")
            stack.callback(os.close, descriptor)
            return descriptor

        asked, told = memory("request"), memory("report")
        request = {"step": step, "at": way.base.head.at, "notes": way.end.notes}
        os.write(asked, to_text(request).encode())
        code = _run(program, {**_commit(store, way.base.name, memory), REQUEST: _numbers((asked, told))})
        report = os.pread(told, os.fstat(told).st_size, 0)
    if not report:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return {"error": f"the script {how} before that step; its output is above"}
    return json.loads(report)  # type: ignore[no-any-return]


def _commit(store: Store, name: str, memory: Callable[[str], int]) -> dict[str, str]:
    """Read a checkpoint into memory of a slot; the variables by which a process finds it there."""
    sides, past = [memory(f"commit-{number}") for number in range(_SIDES)], memory("results")
    checkpoint = read.opened(store, name)
    rank = min(file.number for file in checkpoint.manifest.files if file.kind == LOCAL)
    checkpoint_requests.fill(checkpoint, checkpoint.manifest.record.identity, {"0": (sides, past)}, {"0": rank})
    return {COMMITS: _numbers(sides), RESULTS: str(past)}


def _numbers(descriptors: Sequence[int]) -> str:
    return ",".join(map(str, descriptors))


def _run(program: RecordedProgram, own: Mapping[str, str]) -> int:
    """Run the job's script to its end; its exit code."""
    descriptors = [int(number) for value in own.values() for number in value.split(",")]
    environ = environment({**os.environ, **program.variables}, engine=program.engine)
    process = subprocess.Popen(
        program.command,
        cwd=program.cwd,
        env={**environ, **own},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        pass_fds=descriptors,
        start_new_session=True,
        preexec_fn=process_tree.die_with_parent,
    )
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # it has not been waited for, so the number is still its own
        code = process.wait()
    return code


def environment(environ: Mapping[str, str], *, engine: str) -> dict[str, str]:
    """The environment of a process with a world of its own, in place of that of a job. Pure."""
    own = {name: value for name, value in environ.items() if not _OF_A_JOB.fullmatch(name)}
    collectives = {} if engine == DEFAULT else {COLLECTIVES: engine}
    return {**own, **collectives, "HVD_ELASTIC_REPLAY": "1", "PYTHONUNBUFFERED": "1"}


# --- what is printed


def shown(report: Mapping[str, Any]) -> str:
    """Return a report for people. Pure."""
    gradients, ranks = report["gradients"], report["ranks"]
    world, rates = report["world"], dict.fromkeys(report["learning_rates"])
    workers = "1 worker" if world["size"] == 1 else f"{world['size']} workers"
    unlike = any(row["norm"] != row["norm_at_update"] for row in gradients if row["norm_at_update"] is not None)
    lines = [
        f"step {report['step']} of {report['job']}, from {report['checkpoint']} (step {report['checkpoint_step']}) on",
        f"world {world['generation']}, {workers}; learning rate {', '.join(map(_number, rates))}",
        f"loss {_number(report['loss'], none='unknown')}",
        "",
    ]
    headings = ["PARAMETER", "SHAPE", "GRADIENT NORM", *(["AT THE UPDATE"] if unlike else [])]
    rows = [
        [row["parameter"], "x".join(map(str, row["shape"])) or "1", _number(row["norm"])]
        + ([_number(row["norm_at_update"])] if unlike else [])
        for row in gradients
    ]
    of_ranks = []
    for row in ranks:
        samples = list(map(str, row["samples"]))
        loss = _number(row["loss"], none="unknown")
        of_ranks.append((str(row["rank"]), loss, str(len(samples)), " ".join(samples)))
    return (
        "\n".join(lines)
        + "\n"
        + tables.plain(headings, rows, right=headings[2:])
        + "\n"
        + tables.plain(("RANK", "LOSS", "SAMPLES", "IDS"), of_ranks, right=("RANK", "LOSS", "SAMPLES")).rstrip("\n")
    )


def _number(value: float | str | None, *, none: str = "none") -> str:
    """A number; a text for one that JSON does not have."""
    return none if value is None else value if isinstance(value, str) else f"{value:.9g}"
