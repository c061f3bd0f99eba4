"""``scripts/fuzz``: each target in a process of its own, in turn."""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import random
import resource
import struct
import sys
import time
from multiprocessing.connection import Connection

from tests.faults.fuzz.hunt import Finding, hunt, made, once
from tests.faults.fuzz.targets import TARGETS

LATE_S = 60.0
"""So long after its time a process is taken to hang."""
MEMORY = 4 << 30
"""Bytes of address space of a process, beyond what it begins with."""


def main() -> int:
    options = argparse.ArgumentParser(
        prog="scripts/fuzz", description="Read damaged inputs, and watch memory and time."
    )
    options.add_argument("--seconds", type=float, default=60, help="for all targets together (default: 60)")
    options.add_argument("--seed", type=int, help="default: one at random; it is printed")
    options.add_argument("--only", type=int, metavar="NUMBER", help="one input again, of one target")
    options.add_argument("targets", metavar="TARGET", nargs="*", help=f"default: all of {', '.join(TARGETS)}")
    args = options.parse_args()
    names = args.targets or list(TARGETS)
    unknown = set(names) - TARGETS.keys()
    if unknown:
        options.error(f"{min(unknown)!r} is not a target; there are {', '.join(TARGETS)}")
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    if args.only is not None:
        found = [once(name, TARGETS[name], seed=seed, number=args.only) for name in names]
    else:
        print(f"seed {seed}", flush=True)
        found = [_in_a_process(name, seed=seed, seconds=args.seconds / len(names)) for name in names]
    for finding in found:
        if finding is not None:
            print(f"found: {finding}")
    return 1 if any(found) else 0


def _in_a_process(name: str, *, seed: int, seconds: float) -> Finding | None:
    """What is found, also if the process ends or hangs: at which input is known from memory that both have."""
    at = mmap.mmap(-1, 8)
    hears, says = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_hunt, args=(name, seed, seconds, at, says), daemon=True)
    began = time.monotonic()
    child.start()
    says.close()
    try:
        count, finding = hears.recv() if hears.poll(seconds + LATE_S) else (0, None)
        ended = count > 0 or finding is not None
    except EOFError:
        ended = False
    if not ended:
        number = struct.unpack("Q", at[:8])[0]
        child.join(5)
        what = "it does not come back" if child.is_alive() else f"the process ends with {child.exitcode}"
        finding = Finding(name, seed, number, what, made(TARGETS[name], name, seed=seed, number=number))
        count = number
    child.kill()
    child.join()
    print(f"{name}: {count} inputs in {time.monotonic() - began:.0f} s", flush=True)
    return finding


def _hunt(name: str, seed: int, seconds: float, at: mmap.mmap, says: Connection) -> None:
    with open("/proc/self/statm") as pages:
        most = int(pages.read().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def begun(number: int) -> None:
        at[:8] = struct.pack("Q", number)

    says.send(hunt(name, TARGETS[name], seed=seed, seconds=seconds, begun=begun))


if __name__ == "__main__":
    sys.exit(main())
