"""The words of the documentation are counted without tables, and kept few."""

from __future__ import annotations

from pathlib import Path

from tooling.words import pages, words

DOCS = Path(__file__).parents[3] / "docs"
MOST = 24_920
"""The bar for what one reads. A page that grows makes another one shorter."""


def test_tables_and_drawings_are_not_counted_and_all_else_is() -> None:
    assert words("# A title\n\n| a | b |\n|---|---|\n| one | two |\n\nThree more words.\n\n    $ code ──▶ here\n") == 7


def test_benchmarks_are_left_out_and_the_longest_page_comes_first(tmp_path: Path) -> None:
    for name, text in (
        ("a.md", "one"),
        ("b.md", "one two"),
        ("benchmarks.md", "one two three"),
        ("benchmark-report.md", "1"),
    ):
        (tmp_path / name).write_text(text)
    assert list(pages(tmp_path).items()) == [("b.md", 2), ("a.md", 1)]


def test_the_documentation_stays_short() -> None:
    assert sum(pages(DOCS).values()) <= MOST
