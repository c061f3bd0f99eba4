"""Which program is measured and tested as kubectl."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kubectl import kubectl


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_the_one_on_the_path_is_taken_and_no_other(place: Path) -> None:
    assert kubectl() is None
    found = program(place / "bin" / "kubectl")
    assert kubectl() == found


def test_of_one_that_only_chooses_a_version_the_newest_beside_it_is_taken(place: Path) -> None:
    (place / "sdk").mkdir()
    for version in ("1.9", "1.32", "1.33", "1.33.old"):
        program(place / "sdk" / f"kubectl.{version}")
    (place / "bin" / "kubectl").symlink_to(program(place / "sdk" / "kubectl"))
    assert kubectl() == place / "sdk" / "kubectl.1.33"
