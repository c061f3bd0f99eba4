"""A commit is written to a disk and read back, by the helper processes of two ranks' agents.

Measured beside it, in the same run: the same amount of zeros with `dd conv=fsync`, and a plain read of the same files
into new memory. For stock: `torch.save` with `fsync` by one rank, and `torch.load`, as users do without a library.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.core import commit_record as sides
from hvd_elastic_ext.core.commit_record import Identity, Record

SAVE: Final = "604 MB onto the disk, sealed (stock: torch.save, fsync)"
ZEROS: Final = "as many zeros, dd conv=fsync"
LOAD: Final = "back into memory, verified (stock: torch.load)"
READ: Final = "the same files, only read"
PARAMETERS, QUICK_PARAMETERS = 50_300_000, 1_000_000
TIMES, QUICK_TIMES = 5, 1
RANKS: Final = 2
TIMEOUT_S: Final = 300.0
CHUNK: Final = 8 << 20


def measure(trial: Trial) -> Values:
    """Save and load several times."""
    length = 12 * trial.pick(PARAMETERS, QUICK_PARAMETERS)
    times = trial.pick(TIMES, QUICK_TIMES)
    if trial.side == "stock":
        return _stock(trial, length, times)
    found: dict[str, list[Timing]] = {SAVE: [], ZEROS: [], LOAD: [], READ: []}
    with _commit(length) as (side, identity), _memory(0) as memory, _helpers(side, memory) as helpers:
        for _ in range(times):
            _round(trial.folder, helpers, Commit(side, identity, length), memory, found)
    return found


class Commit(NamedTuple):
    """The memory that holds a commit, its identity, and the bytes of its tensors."""

    side: int
    identity: Identity
    length: int


def _round(folder: Path, helpers: list[Helper], commit: Commit, memory: int, found: dict[str, list[Timing]]) -> None:
    side, identity, length = commit
    place = {"place": str(folder / "store")}
    os.sync()
    with _timed(found[ZEROS]):
        megabytes = str(length >> 20)
        command = ["dd", "if=/dev/zero", f"of={folder}/zeros", "bs=1M", f"count={megabytes}", "conv=fsync"]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=True)
    (folder / "zeros").unlink()
    os.sync()
    with _timed(found[SAVE]):
        for rank, helper in enumerate(helpers):
            share = {"commit": identity, "parts": RANKS, "shares": {"0": [rank, rank, 0]}, "sides": {"0": [side]}}
            helper.ask({"do": "write", **place, **share})
        written = [helper.answer() for helper in helpers]
        helpers[0].ask({"do": "seal", **place, "parts": RANKS, "world": RANKS, "written": written, "keep": 1})
        checkpoint = Path(helpers[0].answer()["path"])
    os.ftruncate(memory, 0)
    os.ftruncate(memory, length + CHUNK)
    with _timed(found[READ]):
        _read(checkpoint, mmap.mmap(memory, 0))
    os.ftruncate(memory, 0)  # new memory, as for the plain read
    with _timed(found[LOAD]):
        helpers[0].ask({"do": "load", **place, "ranks": {"0": 0}, "sides": {"0": [memory]}})
        helpers[0].answer()
    shutil.rmtree(checkpoint)


SERVE: Final = """
import json, sys
from hvd_elastic_ext.checkpoint.programs.agent_requests import answered
for line in sys.stdin:
    print(json.dumps(answered(json.loads(line))), flush=True)
"""


class Helper:
    """A helper process for checkpoints that stays, so that its start is not measured."""

    def __init__(self, *memory: int) -> None:
        command = [sys.executable, "-c", SERVE]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, pass_fds=memory, **pipes)
        self.ask({"do": "held", "place": "/nowhere", "sides": {}})  # wait until it is ready
        self.answer()

    def ask(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answers: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "failed" in answers:
            raise BenchmarkError(answers["failed"])
        return answers


@contextlib.contextmanager
def _helpers(*memory: int) -> Iterator[list[Helper]]:
    helpers: list[Helper] = []
    try:
        for _ in range(RANKS):
            helpers.append(Helper(*memory))
        yield helpers
    finally:
        for helper in helpers:
            helper.process.kill()
            helper.process.communicate()


@contextlib.contextmanager
def _memory(length: int) -> Iterator[int]:
    memory = os.memfd_create("hvd-bench")
    try:
        os.ftruncate(memory, length)
        yield memory
    finally:
        os.close(memory)


@contextlib.contextmanager
def _commit(length: int) -> Iterator[tuple[int, Identity]]:
    """Yield a side with three tensors of random data: weights, and Adam's two moments."""
    identity = Identity(7, 0, 1, 1)
    rows = [["float32", [length // 12], [1], "cpu", 1]] * 3
    layout = json.dumps(rows, separators=(",", ":")).encode()
    data = 3 * -(-(length // 3) // 64) * 64
    tree, local = trees.encode({"model": json.dumps([{"$tensor": number} for number in range(3)])}), trees.encode({})
    record = Record(identity, 1, 0, data, len(layout), len(tree), len(local))
    with _memory(sides.PAGE + record.total) as memory:
        side = mmap.mmap(memory, 0)
        noise = os.urandom(CHUNK)
        for start in range(0, data, CHUNK):
            side[sides.PAGE + start : sides.PAGE + min(start + CHUNK, data)] = noise[: min(CHUNK, data - start)]
        side[sides.PAGE + data : sides.PAGE + record.total] = layout + tree + local
        head, fields = sides.pack(1, record)
        side[: len(head) + len(fields)] = head + fields
        yield memory, identity


def _read(folder: Path, into: mmap.mmap) -> None:
    at = 0
    for path in sorted(folder.glob("shard-*")):
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(memoryview(into)[at : at + CHUNK]):
                at = min(at + got, len(into) - CHUNK)


@contextlib.contextmanager
def _timed(into: list[Timing]) -> Iterator[None]:
    begun = time.monotonic()
    yield
    into.append(Timing(time.monotonic() - begun))


def _stock(trial: Trial, length: int, times: int) -> Values:
    command = [sys.executable, "-m", "benchmarks.scripts.torch_save", str(trial.folder), str(length), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise BenchmarkError(f"torch.save: {done.stderr.strip()[-300:]}")
    answers = json.loads(done.stdout)
    return {SAVE: list(map(Timing, answers["save"])), LOAD: list(map(Timing, answers["load"]))}


CASE: Final = Case(
    name="checkpoint",
    about="a commit of 604 MB onto the disk as a checkpoint by two writers, and back",
    figures=(
        Figure(SAVE, bar_ratio=1.0, floor=ZEROS, bar_floor=1 / 0.7),
        Figure(ZEROS, sides=("ours",)),
        Figure(LOAD, floor=READ, bar_floor=1.5),
        Figure(READ, sides=("ours",)),
    ),
    measure=measure,
    repeats=3,
)
