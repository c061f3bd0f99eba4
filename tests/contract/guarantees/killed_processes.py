"""A parent that owns commit memory, and training processes that it kills: ``killed_processes SEED ANEW KIND=LIVES…``.

Every life makes its State, syncs, says what it found and then commits as fast as it can, saying each number once its
commit is taken. It is killed at a random moment. ``ANEW`` lives of our State after the first are new programs,
as a launcher would; the rest are forks, so that there can be many.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

LONGEST_S = 60.0
PAUSE_S = 0.03


def build(kind: str) -> Any:
    net = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with torch.no_grad():
        net.weight.zero_()
    optimizer.state[net.weight]["momentum_buffer"] = torch.zeros(64, 64)
    if kind == "unmodified":
        return hvd.elastic.TorchState(net, optimizer, batch=0, history=[])
    import hvd_elastic_ext.torch as elastic
    from tests.contract.worker.user_states_with_mixin import MIXED

    make = elastic.TorchState if kind == "ours" else MIXED[kind]
    return make(net, optimizer, batch=0, history=[])


def whole(state: Any) -> bool:
    """Everything in the State is of one and the same commit."""
    momentum = state.optimizer.state[state.model.weight]["momentum_buffer"]
    tensors = all(bool((tensor == state.batch).all()) for tensor in (state.model.weight, momentum))
    return tensors and state.history == list(range(1, state.batch + 1))[-5:]


def live(kind: str, say: Callable[[str], object]) -> None:
    sys.argv[1:] = [kind]  # one program, however a life is started: a commit is its program's own
    torch.set_num_threads(1)
    hvd.init()
    from tests.contract.worker.user_states import with_handlers

    with with_handlers():
        state = build(kind)
        state.sync()
        say(f"found {state.batch} {'whole' if whole(state) else 'torn'}")
        while True:
            state.batch += 1
            state.history = [*state.history, state.batch][-5:]
            with torch.no_grad():
                state.model.weight.fill_(state.batch)
                state.optimizer.state[state.model.weight]["momentum_buffer"].fill_(state.batch)
            state.save()
            say(f"committed {state.batch}")


def sayer(descriptor: int) -> Callable[[str], object]:
    return lambda line: os.write(descriptor, f"{line}\n".encode())


def start(kind: str, *, anew: bool, descriptors: list[int], say: int) -> int:
    if anew:
        command = [sys.executable, "-m", "tests.contract.guarantees.killed_processes", kind, "--live", str(say)]
        return subprocess.Popen(command, pass_fds=[*descriptors, say]).pid
    pid = os.fork()
    if pid == 0:
        try:
            live(kind, sayer(say))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def one_life(kind: str, *, anew: bool, descriptors: list[int], chance: random.Random) -> tuple[int, bool, int]:
    """What it found, whether that was whole, and the last number it committed for sure."""
    hear, say = os.pipe()
    pid = start(kind, anew=anew, descriptors=descriptors, say=say)
    os.close(say)
    text = b""
    try:
        while b"committed" not in text:
            ready, _, _ = select.select([hear], [], [], LONGEST_S)
            piece = os.read(hear, 1 << 16) if ready else b""
            if not piece:
                raise SystemExit(f"a life ended before its first commit; it said {text!r}")
            text += piece
        time.sleep(chance.uniform(0, PAUSE_S))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with os.fdopen(hear, "rb") as rest:
        lines = (text + rest.read()).decode().splitlines()
    _, found, state = lines[0].split()
    return int(found), state == "whole", int(lines[-1].split()[1])


def lives(kind: str, count: int, *, anew: int, chance: random.Random) -> list[tuple[int, bool, int]]:
    descriptors = [os.memfd_create(f"commit-{index}") for index in range(2)]
    os.environ["HVD_ELASTIC_COMMIT_FDS"] = ",".join(map(str, descriptors))
    seen = [one_life(kind, anew=1 <= number <= anew, descriptors=descriptors, chance=chance) for number in range(count)]
    for descriptor in descriptors:
        os.close(descriptor)
    return seen


def main(*words: str) -> None:
    if words[1] == "--live":
        live(words[0], sayer(int(words[2])))
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)  # imports what every fork needs
    seed, anew, *wanted = words
    chance = random.Random(int(seed))
    seen = {
        kind: lives(kind, int(count), anew=int(anew) if kind == "ours" else 0, chance=chance)
        for kind, count in (word.split("=") for word in wanted)
    }
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
