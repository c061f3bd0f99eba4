"""The package is on no index, so nobody is told to install it, or an extra of it, from there."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
READ = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("docker/**/*.md")]
PRINTED = [*ROOT.glob("hvd_elastic_ext/**/*.py"), *ROOT.glob("discover/**/*.py")]


def test_no_text_says_to_install_the_package_from_an_index() -> None:
    assert len(READ) > 30
    assert [str(path) for path in (*READ, *PRINTED) if "hvd-elastic-ext[" in path.read_text()] == []
