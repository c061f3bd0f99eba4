"""docs/architecture.md draws what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("discover", *(f"hvd_elastic_ext/{name}" for name in ("launcher", "worker", "report", "demo", "checkpoint")))


def modules(package: str) -> set[str]:
    folder = ROOT / package
    found = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    return found - {"__init__"}


def drawn(package: str) -> str:
    """The lines of the drawing that begin with the package's name, to the next blank one."""
    arrows = (ROOT / "docs/architecture.md").read_text().partition("## Arrows")[2]
    found = re.search(rf"^   {Path(package).name}: .*?(?=^   \w+: |^\s*$|^```)", arrows, re.MULTILINE | re.DOTALL)
    assert found, f"{package} is not drawn"
    return found[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_drawn(package: str) -> None:
    assert modules(package) - set(re.findall(r"\w+", drawn(package))) == set()


def test_every_file_that_is_named_is_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`((?:core|edges|discover|launcher|worker|report|checkpoint)/[\w/]+(?:\.py|/))`", text))
    roots = (ROOT, ROOT / "hvd_elastic_ext")
    assert len(named) > 40
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()
