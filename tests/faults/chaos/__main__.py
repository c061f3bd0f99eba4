"""``scripts/chaos``: random faults in real jobs, one job for each seed."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.faults.chaos import evidence
from tests.faults.chaos.checker import violations
from tests.faults.chaos.plan import plan
from tests.faults.chaos.run import run
from tests.support import leaks, marks

BUSY: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100000))"
"""A program that keeps a core of the machine busy as long as its parent lives."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Break a real job of this machine's at random for 75 s a seed, then see whether it trains to its "
        "end and has lost no commit that somebody held. Exit code 1 if one does not.",
    )
    options.add_argument("seeds", metavar="SEED", type=int, nargs="*")
    options.add_argument("--checkpoints", action="store_true", help="with --checkpoint-dir; all agents may be killed")
    options.add_argument(
        "--engine", default="horovod", help="as of the launcher: horovod, torch (default: %(default)s)"
    )
    options.add_argument("--trains", default="torch", help="with what: torch, tensorflow (default: %(default)s)")
    options.add_argument("--repeat", metavar="N", type=int, default=1, help="run all seeds N times")
    options.add_argument("--at-once", metavar="N", type=int, default=1, help="run N jobs side by side")
    options.add_argument("--load", metavar="N", type=int, default=0, help="keep the machine busy with N loops beside")
    options.add_argument("--plan", action="store_true", help="say what the seeds mean, and do nothing")
    options.add_argument("--check", metavar="FOLDER", type=Path, help="say what is wrong in what another run has left")
    options.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return options


def main() -> int:
    options = parser().parse_args()
    checkpoints: bool = options.checkpoints
    if options.plan:
        print("\n\n".join(str(plan(seed, checkpoints=checkpoints)) for seed in options.seeds))
        return 0
    if options.check is not None:
        found = violations(evidence.seen(options.check))
        print("\n".join(found) or "nothing is wrong")
        return 1 if found else 0
    if options.one:
        return one(options.seeds[0], checkpoints=checkpoints, engine=options.engine, trains=options.trains)
    words = [
        sys.executable,
        "-m",
        "tests.faults.chaos",
        "--one",
        "--engine",
        options.engine,
        "--trains",
        options.trains,
        *(["--checkpoints"] if checkpoints else []),
    ]
    seeds = list(itertools.chain.from_iterable(itertools.repeat(options.seeds, options.repeat)))
    with busy(options.load), ThreadPoolExecutor(options.at_once) as pool:
        codes = list(pool.map(lambda seed: subprocess.run([*words, str(seed)], check=False).returncode, seeds))
    failed = [str(seed) for seed, code in zip(seeds, codes, strict=True) if code]
    print(
        f"chaos: {len(seeds) - len(failed)} of {len(seeds)} are well" + (f"; not {' '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep ``count`` cores of the machine busy within the context."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def one(seed: int, *, checkpoints: bool, engine: str, trains: str) -> int:
    """Run one seed in this process, and print all results. Return the exit code."""
    mark = os.environ[marks.MARK] = f"{marks.owner()}-chaos"
    before = leaks.snapshot()
    drawn = plan(seed, checkpoints=checkpoints)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    print(f"{drawn}\nin {folder}\n", flush=True)
    report = run(
        drawn, folder, engine=engine, trains=trains, told=lambda line: print(f"seed {seed}: {line}", flush=True)
    )
    left = leaks.remove_leaks(mark, since=before)
    if report.well and not left:
        shutil.rmtree(folder)
        print(f"seed {seed}: well", flush=True)
        return 0
    (folder / "report").write_text(str(report))
    found = "\n".join([*report.problems[:20], *(f"left behind: {line}" for line in left)])
    print(f"seed {seed}: FAILED; all of it is in {folder}/report\n{found}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
