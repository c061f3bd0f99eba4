"""The slots of one agent, without processes: they answer orders as real ones do. No sockets here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

News = dict[str, Any]


@dataclass(slots=True)
class Process:
    """One simulated process."""

    life: int
    asked: int = 0
    generation: int = 0


class Slots:
    """``note`` is called for each message to a process, with its kind, generation and moment of receipt."""

    def __init__(self, host: str, *, note: Callable[[str, int, float], None]) -> None:
        self._host = host
        self._note = note
        self._slots: dict[int, Process] = {}
        self._finishing = False
        self._step = 0

    @property
    def finished(self) -> bool:
        """Whether the last order was to finish, and no process is left."""
        return self._finishing and not self._slots

    def heartbeats(self) -> News:
        """Return the heartbeats of all processes."""
        self._step += 50
        pace = {"step": self._step, "progress": self._step, "step_s": 0.021034}
        slots = {
            str(slot): {
                "life": process.life,
                "age": 0.412,
                "beat": {**pace, "commit": [1, process.generation, self._step // 5]},
            }
            for slot, process in self._slots.items()
        }
        return {"event": "beats", "slots": slots}

    def handle(self, order: Mapping[str, Any], moment: float) -> Iterator[News]:
        """Answer an order that was received at ``moment``."""
        kind, slot = order["do"], order.get("slot")
        if kind == "finish":
            self._finishing = True
        elif kind == "start" and isinstance(slot, int):
            yield from self._start(slot, int(order["life"]))
        elif kind == "tell":
            for number in sorted(int(number) for number in order["to"]):
                if number in self._slots:
                    yield from self._tell(number, order["message"], moment)
        elif isinstance(slot, int) and slot in self._slots:
            if kind == "answer":
                yield from self._answered(slot, moment)
            else:  # stop, kill
                yield from self._end(slot, 143)

    def _start(self, slot: int, life: int) -> Iterator[News]:
        self._slots[slot] = Process(life)
        yield self._of(slot, "started", pid=10_000 + slot, restarts=0)
        for word in ("looping", "parked"):
            yield self._said(slot, word)

    def _tell(self, slot: int, message: Mapping[str, Any], moment: float) -> Iterator[News]:
        what, generation = str(message["tell"]), int(message.get("generation", 0))
        self._note(what, generation, moment)
        if what == "world":
            self._slots[slot].generation = generation
        elif what == "update" and message.get("leave"):
            yield from self._end(slot, 0)
        elif what in ("go", "update"):
            process = self._slots[slot]
            process.asked += 1
            path = f"/rank_and_size/{self._host}/{slot}"
            yield self._of(slot, "asked", id=process.asked, method="GET", path=path, body="")

    def _answered(self, slot: int, moment: float) -> Iterator[News]:
        generation = self._slots[slot].generation
        self._note("rank", generation, moment)
        yield self._said(slot, "entered", generation=generation)
        yield self._said(slot, "synced")

    def _end(self, slot: int, code: int) -> Iterator[News]:
        yield self._of(slot, "exited", pid=10_000 + slot, code=code, signal=None, oom=False)
        yield self._of(slot, "ended", code=code, reason="it was told to")
        del self._slots[slot]

    def _said(self, slot: int, word: str, **more: object) -> News:
        return self._of(slot, "said", message={"say": word, **more})

    def _of(self, slot: int, event: str, **fields: object) -> News:
        return {"event": event, "slot": slot, "life": self._slots[slot].life, **fields}
