"""Ranks of one world in one process, each in a thread that runs only when the others stand still."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor


class Fabric:
    """What the ranks of one world share. A collective is done when every rank is in it, with the same name and kind."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.log: list[str] = []
        self._condition = threading.Condition()
        self._entries: dict[int, dict[int, tuple[str, Any]]] = {}
        self._answers: dict[int, Any] = {}
        self._next = [0] * size
        self.broken: str | None = None

    def begin(self, rank: int, what: str, value: Any) -> int:
        """Enter the next collective; its number."""
        with self._condition:
            number = self._next[rank]
            self._next[rank] += 1
            entries = self._entries.setdefault(number, {})
            entries[rank] = (what, value)
            kinds = {kind for kind, _ in entries.values()}
            if len(kinds) > 1:
                self._fail(f"ranks are in different collectives: {sorted(kinds)}")
            if len(entries) == self.size:
                self.log.append(what)
                self._answers[number] = [value for _, (_, value) in sorted(entries.items())]
                self._condition.notify_all()
            return number

    def end(self, number: int) -> list[Any]:
        """What every rank brought to collective ``number``, once all have."""
        with self._condition:
            if not self._condition.wait_for(lambda: number in self._answers or self.broken, timeout=20):
                self._fail("a rank never came")
            if number not in self._answers:
                raise HorovodInternalError(self.broken)
            return list(self._answers[number])

    def leave(self, why: str) -> None:
        """A rank is gone: whoever waits for it is told."""
        with self._condition:
            self.broken = self.broken or why
            self._condition.notify_all()

    def _fail(self, why: str) -> None:
        self.broken = why
        self._condition.notify_all()
        raise AssertionError(why)


class Ticket:
    def __init__(self, fabric: Fabric, number: int) -> None:
        self._fabric, self._number = fabric, number

    def wait(self) -> int:
        return int(max(self._fabric.end(self._number)))


class LockstepComms:
    """``Comms`` of one rank."""

    rides_along = True

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self._fabric, self._rank = fabric, rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._fabric.size

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        assert data.dtype == torch.uint8
        assert data.dim() == 1
        mine = data.clone() if self._rank == root else None
        what = f"broadcast {name} {data.numel()} from {root}"
        found = self._fabric.end(self._fabric.begin(self._rank, what, mine))
        data.copy_(found[root])

    def sum(self, data: Tensor, *, name: str) -> None:
        what = f"sum {name} {tuple(data.shape)} {data.dtype}"
        data.copy_(sum(self._fabric.end(self._fabric.begin(self._rank, what, data.clone()))))

    def max(self, number: int, *, name: str) -> int:
        return int(max(self._fabric.end(self._fabric.begin(self._rank, f"max {name}", number))))

    def begun_by_script(self) -> None:
        """No script runs."""

    def start_max(self, number: int, *, name: str) -> Ticket:
        return Ticket(self._fabric, self._fabric.begin(self._rank, f"max {name}", number))

    def reset(self) -> None:
        raise AssertionError("not asked for here")


def in_lockstep(size: int, rank_main: Callable[[LockstepComms], Any]) -> tuple[Sequence[Any], Fabric]:
    """Run ``rank_main`` once a rank, all at once; what each returned, and the world they were in."""
    fabric = Fabric(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = rank_main(LockstepComms(fabric, rank))
        except BaseException as error:
            errors.append(error)
            fabric.leave(f"rank {rank}: {error!r}")

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return results, fabric
