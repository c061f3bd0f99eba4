"""A parent that owns commit memory, and training processes that it kills: ``killed_processes FRAMEWORK SEED ANEW
KIND=LIVES…``.

Every life makes its State, syncs, says what it found and then commits as fast as it can, saying each number once its
commit is taken. It is killed at a random moment. ``ANEW`` lives of the first kind after its first one are new programs,
as a launcher would start them; the rest are forks, so that there can be many. What a framework trains with is in
``torch_lives.py`` and ``tensorflow_lives.py``; the parent itself computes nothing with it.
"""

from __future__ import annotations

import importlib
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

LONGEST_S = 60.0
PAUSE_S = 0.03


def live(lives: Any, kind: str, say: Callable[[str], object]) -> None:
    sys.argv[1:] = [kind]  # one program, however a life is started: a commit is its program's own
    with lives.world():
        state = lives.build(kind)
        state.sync()
        say(f"found {state.batch} {'whole' if lives.whole(state) else 'torn'}")
        while True:
            state.batch += 1
            state.history = [*state.history, state.batch][-5:]
            lives.fill(state, state.batch)
            state.save()
            say(f"committed {state.batch}")


def sayer(descriptor: int) -> Callable[[str], object]:
    return lambda line: os.write(descriptor, f"{line}\n".encode())


def start(framework: str, kind: str, *, anew: bool, descriptors: list[int], say: int) -> int:
    if anew:
        command = [
            sys.executable,
            "-m",
            "tests.contract.guarantees.killed_processes",
            framework,
            "--live",
            kind,
            str(say),
        ]
        return subprocess.Popen(command, pass_fds=[*descriptors, say]).pid
    pid = os.fork()
    if pid == 0:
        try:
            live(lives_of(framework), kind, sayer(say))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def one_life(
    framework: str, kind: str, *, anew: bool, descriptors: list[int], chance: random.Random
) -> tuple[int, bool, int]:
    """What it found, whether that was whole, and the last number it committed for sure."""
    hear, say = os.pipe()
    pid = start(framework, kind, anew=anew, descriptors=descriptors, say=say)
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


def lives(framework: str, kind: str, count: int, *, anew: int, chance: random.Random) -> list[tuple[int, bool, int]]:
    descriptors = [os.memfd_create(f"commit-{index}") for index in range(2)]
    os.environ["HVD_ELASTIC_COMMIT_FDS"] = ",".join(map(str, descriptors))
    seen = [
        one_life(framework, kind, anew=1 <= number <= anew, descriptors=descriptors, chance=chance)
        for number in range(count)
    ]
    for descriptor in descriptors:
        os.close(descriptor)
    return seen


def lives_of(framework: str) -> Any:
    """The module with what every fork needs."""
    return importlib.import_module(f"tests.contract.guarantees.{framework}_lives")


def main(framework: str, *words: str) -> None:
    if words[0] == "--live":
        live(lives_of(framework), words[1], sayer(int(words[2])))
    lives_of(framework).prepare()
    seed, anew, *wanted = words
    chance = random.Random(int(seed))
    seen = {}
    for number, word in enumerate(wanted):
        kind, count = word.split("=")
        seen[kind] = lives(framework, kind, int(count), anew=0 if number else int(anew), chance=chance)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
