"""Pages lead to what is there, and name what the program has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / name
    for name in (
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "docker/README.md",
        "tests/contract/guarantees/README.md",
        "tests/faults/README.md",
        "tests/support/kube/README.md",
    )
]
PAGES += sorted((ROOT / "examples").rglob("README.md"))
PAGES += sorted((ROOT / "docs").glob("*.md"))
TESTS = list((ROOT / "tests").rglob("test_*.py"))
FILES = {path.name for path in TESTS}
FUNCTIONS = {
    name for path in TESTS for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
}


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them, and its own anchors."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)
    return {*slugs, *re.findall(r'<a id="([^"]+)">', text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_an_anchor(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8"))
    broken = []
    for path, anchor in links:
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_every_page_is_in_the_index_which_the_readme_leads_to() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs/README.md").read_text(encoding="utf-8")))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - linked == {"README.md"}
    assert "](docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = {path for path in re.findall(r"tests/[\w/]+\.py", text) if not (ROOT / path).is_file()}
    missing |= set(re.findall(r"`(?:[\w/.]+::)?(test_\w+)`", text)) - FUNCTIONS
    missing |= set(re.findall(r"`(test_\w+\.py)(?:::[^`]*)?`", text)) - FILES
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_with_its_file_is_in_that_file(page: Path) -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page.read_text(encoding="utf-8")))
    missing = {
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or not re.search(rf"\bdef {name}\(", (ROOT / path).read_text(encoding="utf-8"))
    }
    assert missing == set()
