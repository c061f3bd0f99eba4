"""Says what it finds at its start, "trains", and ends as it is told: ``warm_trainee.py MODULE… [-- WORD…]``."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

at_start = set(sys.modules)
for name in sys.argv[1:]:
    if name == "--":
        break
    importlib.import_module(name)

from hvd_elastic_ext.worker.process import imports, link  # noqa: E402 - what is imported before is what is preloaded

told: list[dict[str, object]] = []
own = link.current()
own.on_message = told.append
found = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
descriptors = {path.name: os.readlink(path) for path in found if path.is_symlink()}
numpy = sys.modules.get("numpy")
facts = {
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "name": __name__,
    "file": __file__,
    "spec": __spec__,
    "path": sys.path[0],
    "cwd": str(Path.cwd()),
    "env": dict(os.environ),
    "preloaded": [name for name in sys.argv[1:] if name in at_start],
    "descriptors": descriptors,
    "random": random.random(),
    "numpy": None if numpy is None else float(numpy.random.rand()),
    "handlers": {int(number): str(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "pid": os.getpid(),
    "parent": os.getppid(),
    "leads": os.getsid(0) == os.getpgrp() == os.getpid(),
    "comm": Path("/proc/self/comm").read_text(),
    "cmdline": Path("/proc/self/cmdline").read_text().split("\0"),
    "oom": Path("/proc/self/oom_score_adj").read_text(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "threads": threading.active_count(),
    "depth": len(__import__("inspect").stack()),
}
print(json.dumps(facts, default=str), flush=True)
print("error output", file=sys.stderr, flush=True)
own.start()
imports.report(own)
own.say("entered", generation=1)


def end(message: dict[str, object]) -> None:
    if message["how"] == "exit":
        sys.exit(message["code"])
    if message["how"] == "raise":
        raise ValueError("as told")
    if message["how"] == "signal":
        os.kill(os.getpid(), int(str(message["number"])))
    if message["how"] == "spawn":
        import multiprocessing

        with multiprocessing.get_context(str(message["context"])).Pool(1) as pool:
            print("sum", pool.apply(sum, ([1, 2],)), flush=True)
    if message["how"] == "interrupt":
        raise KeyboardInterrupt


if __name__ == "__main__":
    while True:
        own.status.step += 1
        time.sleep(0.02)
        if told:
            end(told.pop())
