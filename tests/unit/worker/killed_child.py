"""Commits in a child that is killed at a random moment, again and again: ``killed_child ROUNDS``."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import torch

from tests.unit.worker.made_commits import buffer_over, contents, identity, memory_files

PAUSE_S = 0.01


def commit_until_killed(descriptors: list[int], start: int, *, begun: int) -> None:
    buffer = buffer_over(descriptors)
    number = start
    while True:
        number += 1
        size = 20_000 if number % 5 else 30_000  # so that layouts change and memory grows, too
        buffer.take(contents(number, size=size), identity(number), step=number)
        if number % 3 == 0:
            buffer.relabel(identity(number)._replace(incarnation=1))
        if number == start + 1:
            os.write(begun, b".")


def check(descriptors: list[int], at_least: int) -> int:
    """The number of the commit that is there; it is whole, and not older than what was there before."""
    buffer = buffer_over(descriptors)
    last = buffer.last()
    if last is None:
        assert at_least == 0, "the commit is gone"
        return 0
    number = last.record.step
    assert number >= at_least, f"commit {number} after {at_least}"
    wanted = contents(number)
    assert last.tree == wanted.tree
    assert last.local == wanted.local
    for view in last.views:
        assert bool((view == number).all()), f"commit {number} is torn"
    return number


def main() -> None:
    rounds = int(sys.argv[1])
    torch.set_num_threads(1)
    with memory_files() as descriptors:
        number = kill(descriptors, rounds)
    print("rounds", rounds, "commits", number)


def kill(descriptors: list[int], rounds: int) -> int:
    """Start a child that commits, kill it, look; again and again. The number of the last commit."""
    number = 0
    reading, begun = os.pipe()
    for _ in range(rounds):
        pid = os.fork()
        if pid == 0:
            commit_until_killed(descriptors, number, begun=begun)
        os.read(reading, 1)  # it has committed once
        time.sleep(random.random() * PAUSE_S)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        number = check(descriptors, number + 1)
    return number


if __name__ == "__main__":
    main()
