"""Words of the documentation, by page: prose and code, without reference tables and benchmarks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

LEFT_OUT = ("benchmarks.md", "benchmark-report.md")


def words(text: str) -> int:
    """Words of a page outside of its tables: what stands between spaces and has a letter or a digit."""
    lines = (line for line in text.splitlines() if not line.startswith("|"))
    return sum(bool(re.search(r"\w", word)) for line in lines for word in line.split())


def pages(docs: Path) -> dict[str, int]:
    """Words of each page in the folder, the longest first."""
    counts = {
        path.name: words(path.read_text(encoding="utf-8")) for path in docs.glob("*.md") if path.name not in LEFT_OUT
    }
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def main() -> None:
    counts = pages(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2] / "docs")
    for name, count in counts.items():
        print(f"{count:6} {name}")
    print(f"{sum(counts.values()):6} in all")


if __name__ == "__main__":
    main()
