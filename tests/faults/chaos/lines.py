"""Lines that trainees and the watch write and that the checker reads: what was done, and when.

``TIME KIND NUMBER NAME VALUE NAME VALUE …``. TIME is that of the machine's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """One line. ``number``: in a trainee's line the step (in ``boot`` the pid); in a line of the watch the pid."""

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
    """Yield the complete lines. The last line of a file may be incomplete."""
    for text in lines:
        words = text.split()
        if text.endswith("\n") and len(words) >= 3 and len(words) % 2:
            yield Line(float(words[0]), words[1], int(words[2]), dict(zip(words[3::2], words[4::2], strict=True)))


class Process(NamedTuple):
    """The lines of one training process. ``lines`` are those after the first one, which identifies the process."""

    pid: int
    host: str
    agent: int
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def in_worlds(self) -> Iterator[tuple[int, Line]]:
        """Yield each line with the generation of the world in which it was written."""
        generation = 0
        for line in self.lines:
            generation = line.number_of("generation") if line.kind == "enter" else generation
            yield generation, line


def process(lines: Iterable[str]) -> Process | None:
    """Read the file of one process; None if its first line is not written yet."""
    found = list(parse(lines))
    if not found or found[0].kind != "boot":
        return None
    boot = found[0]
    return Process(boot.number, boot.fields["host"], boot.number_of("agent"), tuple(found[1:]))


def processes(folder: Path) -> list[Process]:
    """Read all files in a folder of traces."""
    read = (process(path.read_text().splitlines(keepends=True)) for path in sorted(folder.iterdir()))
    return [each for each in read if each is not None]
