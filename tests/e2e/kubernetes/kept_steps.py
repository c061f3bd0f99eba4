"""What ``steps.py`` has told: which worlds there were, and that none lost or repeated what was committed before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.e2e.kubernetes.newcomer import LONGEST_S
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).with_name("steps.py")


@dataclass(frozen=True)
class Steps:
    """The two files of one job."""

    folder: Path

    @property
    def command(self) -> str:
        return f"{SCRIPT} {self.folder / 'last'} {self.folder / 'kept'}"

    def lines(self) -> list[tuple[str, ...]]:
        kept = self.folder / "kept"
        text = kept.read_text() if kept.exists() else ""
        return [tuple(line.split()) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def worlds(self) -> list[tuple[int, int]]:
        """Size, and the step that it goes on after."""
        return [(int(line[1]), int(line[2])) for line in self.lines() if line[0] == "world"]

    def trains(self, size: int, *, worlds: int = 1) -> int:
        """Wait until the newest of so many worlds has this size, and has made some steps; how many there are now."""

        def found() -> bool:
            lines, seen = self.lines(), self.worlds()
            if len(seen) < worlds or seen[-1][0] != size:
                return False
            after = lines[len(lines) - 1 - [line[0] for line in reversed(lines)].index("world") :]
            return sum(line[0] == "keeps" for line in after) >= 5

        wait_until(found, what=f"steps in a world of {size}", timeout=LONGEST_S, show=lambda: str(self.lines()[-20:]))
        return len(self.worlds())

    def end(self) -> None:
        """Let the job end some steps from now."""
        now = max(int(line[1]) for line in self.lines() if line[0] == "begins")
        fresh = self.folder / "last.new"
        fresh.write_text(str(now + 60))
        fresh.replace(self.folder / "last")

    def nothing_was_lost(self) -> None:
        """Each world goes on where the one before stood: after all that was committed, and at most what had begun."""
        begun = kept = 0
        for what, *numbers in self.lines():
            first = int(numbers[-1])
            if what == "world":
                assert kept <= first <= begun, f"a world goes on after {first}, and {kept} were kept, {begun} begun"
                begun = first
            elif what == "begins":
                assert first == begun + 1
                begun = first
            else:
                kept = first
