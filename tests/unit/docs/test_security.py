"""docs/security.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/security.md").read_text(encoding="utf-8")


def promises() -> list[tuple[str, str]]:
    """Each promise, and what stands beside it."""
    part = TEXT.partition("## What is promised\n")[2].partition("\n## What is not promised\n")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", part, re.MULTILINE)
    return [row for row in rows if row != ("promise", "tests")]


def test_the_table_of_promises_is_read_whole() -> None:
    assert len(promises()) > 30


@pytest.mark.parametrize(("promise", "tests"), promises())
def test_every_promise_has_tests_that_are_there(promise: str, tests: str) -> None:
    named = re.findall(r"`([^`]+)`", tests)
    assert named
    for each in named:
        path, _, name = each.partition("::")
        assert (ROOT / path).is_file(), each
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), each


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/kubernetes.md", "docs/run.md"])
def test_it_is_found_from_where_one_would_look(page: str) -> None:
    assert "security.md" in (ROOT / page).read_text(encoding="utf-8")
