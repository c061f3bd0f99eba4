"""Lines of words about what was done when: what trainees and the watch write, and the checker reads.

``TIME KIND NUMBER NAME VALUE NAME VALUE …``, the time being that of the machine's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """One line. ``number`` is a step in what a trainee writes, but for ``boot``; a process in what the watch writes."""

    at: float
    kind: str
    number: int
    fields: Mapping[str, str]

    def __str__(self) -> str:
        words = " ".join(f"{name} {value}" for name, value in self.fields.items())
        return f"{self.at:.6f} {self.kind} {self.number} {words}".rstrip()

    def number_of(self, name: str) -> int:
        return int(self.fields[name])


def parse(lines: Iterable[str]) -> Iterator[Line]:
    """Yield what is whole. The last line of a file may be torn."""
    for text in lines:
        words = text.split()
        if text.endswith("\n") and len(words) >= 3 and len(words) % 2:
            yield Line(float(words[0]), words[1], int(words[2]), dict(zip(words[3::2], words[4::2], strict=True)))


class Process(NamedTuple):
    """What one training process wrote. ``lines`` come after the first one, which says what it is."""

    pid: int
    host: str
    agent: int
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def in_worlds(self) -> Iterator[tuple[int, Line]]:
        """Each line with the generation of the world that it was written in."""
        generation = 0
        for line in self.lines:
            generation = line.number_of("generation") if line.kind == "enter" else generation
            yield generation, line


def process(lines: Iterable[str]) -> Process | None:
    """Take one process's file; None if it has not come to its first line."""
    found = list(parse(lines))
    if not found or found[0].kind != "boot":
        return None
    boot = found[0]
    return Process(boot.number, boot.fields["host"], boot.number_of("agent"), tuple(found[1:]))


def processes(folder: Path) -> list[Process]:
    """Everything in a folder of traces."""
    read = (process(path.read_text().splitlines(keepends=True)) for path in sorted(folder.iterdir()))
    return [each for each in read if each is not None]
