"""Prints what it finds at its start, "trains", and ends as the test orders: ``warm_trainee.py MODULE…``."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

at_start = set(sys.modules)
if variable := os.environ.get("SETS"):
    os.environ[variable] = "by the script"
for name in sys.argv[1:]:
    importlib.import_module(name)

from hvd_elastic_ext.worker.process import imports, link  # noqa: E402 - of the product, last

OF_THIS_ONE = ("HVD_ELASTIC_COMMIT_FDS", "HVD_ELASTIC_PLAN", "HVD_ELASTIC_RESULTS_FD")


def facts() -> dict[str, Any]:
    """Return what a script can observe at its start."""
    descriptors = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    numpy = sys.modules.get("numpy")
    return {
        "same": {
            "argv": sys.argv,
            "orig_argv": sys.orig_argv,
            "executable": sys.executable,
            "flags": str(sys.flags),
            "path": sys.path,
            "name": [__name__, __file__, repr(__spec__), __package__],
            "cwd": str(Path.cwd()),
            "env": {name: value for name, value in os.environ.items() if name not in OF_THIS_ONE},
            "descriptors": sorted(os.readlink(path).partition("[")[0] for path in descriptors if path.is_symlink()),
            "inherited": len(os.environ["HVD_ELASTIC_COMMIT_FDS"].split(",")),
            "inheritable": [os.get_inheritable(int(n)) for n in os.environ["HVD_ELASTIC_COMMIT_FDS"].split(",")],
            "past": os.readlink(f"/proc/self/fd/{os.environ['HVD_ELASTIC_RESULTS_FD']}"),
            "past_inheritable": os.get_inheritable(int(os.environ["HVD_ELASTIC_RESULTS_FD"])),
            "handlers": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
            "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
            "leads": os.getsid(0) == os.getpgrp() == os.getpid(),
            "comm": Path("/proc/self/comm").read_text(),
            "cmdline": Path("/proc/self/cmdline").read_text(),
            "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
            "streams": [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)],
            "encoding": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
            "frame": sys._getframe(1).f_back is None,
        },
        "warm": {name: name in at_start for name in sys.argv[1:]},
        "plan": os.environ.get("HVD_ELASTIC_PLAN"),
        "random": random.random(),
        "numpy": None if numpy is None else float(numpy.random.rand()),
        "parent": os.getppid(),
    }


def end(message: dict[str, Any]) -> None:
    match message["how"]:
        case "exit":
            sys.exit(message["code"])
        case "raise":
            raise ValueError("as told")
        case "interrupt":
            raise KeyboardInterrupt
        case "pool":
            with get_context(message["context"]).Pool(1) as pool:
                print("the sum is", pool.apply(sum, ([1, 2],)), flush=True)
            sys.exit(0)  # this removes the pool's semaphores


if __name__ == "__main__":
    told: list[Any] = []
    own = link.current()
    own.on_message = told.append
    print(json.dumps(facts()), flush=True)
    own.start()
    report = imports.Report(own, os.environ)
    report.at_init()
    report.at_first_step()
    own.send("entered", generation=1)
    while True:
        own.status.step += 1
        time.sleep(0.02)
        if told:
            end(told.pop())
