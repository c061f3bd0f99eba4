"""Run by every rank of a real Horovod world: ``python -m tests.contract.worker.world stock|ours DIRECTORY CHECK…``.

Each check is a function of the State class. What it saw goes to
``DIRECTORY/CHECK.RANK.json`` for the tests to judge, for stock and ours alike.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import threading
import traceback
from pathlib import Path

import horovod.torch as hvd
import torch

from tests.contract.worker.worlds import (
    agreement,
    batches,
    mixins,
    newest_commit,
    optimizers,
    random_generators,
    samples,
    sync,
    wire,
)
from tests.contract.worker.worlds.registry import CHECKS

MODULES = (agreement, batches, mixins, newest_commit, optimizers, random_generators, samples, sync, wire)

LONGEST_S = {"ours": 20.0, "stock": 10.0}
"""A check that takes longer has stalled, and so have those after it: the process ends, and with it the world."""


def give_up(files: list[Path]) -> None:
    faulthandler.dump_traceback(all_threads=True)
    for file in files:
        file.write_text(json.dumps({"raised": "stalled"}))
    os._exit(0)


def main(flavour: str, directory: str, *names: str) -> None:
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # the first one imports much of torch
    hvd.init()
    module = "horovod.torch.elastic" if flavour == "stock" else "hvd_elastic_ext.torch"
    State = importlib.import_module(module).TorchState
    files = [Path(directory, f"{name}.{hvd.rank()}.json") for name in names]
    for number, (name, file) in enumerate(zip(names, files, strict=True)):
        watchdog = threading.Timer(LONGEST_S[flavour], give_up, [files[number:]])
        watchdog.daemon = True
        watchdog.start()
        try:
            saw = CHECKS[name](State)
        except Exception as error:
            traceback.print_exc()
            saw = {"raised": f"{type(error).__name__}: {error}"}
        watchdog.cancel()
        file.write_text(json.dumps(saw))


if __name__ == "__main__":
    main(*sys.argv[1:])
