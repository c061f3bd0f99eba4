"""What ``--sync`` names."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.spec.source import Revision, revision_of
from tests.support.jobs import example


@pytest.mark.parametrize(
    ("sync", "found"),
    [
        ("code", None),
        ("git+https://h.example/o/r.git@main", Revision("https://h.example/o/r.git", "main")),
        ("git+https://h.example:8443/o/r@feature/x", Revision("https://h.example:8443/o/r", "feature/x")),
        ("git+http://git.svc/o/r", Revision("http://git.svc/o/r", "HEAD")),
    ],
)
def test_a_folder_or_a_revision_is_meant(sync: str, found: Revision | None) -> None:
    assert revision_of(sync) == found


@pytest.mark.parametrize(
    "sync",
    [
        "git+ssh://git@h/o/r",
        "git+file:///etc@main",
        "git+https://h/o/r@--upload-pack=x",
        "git+https://h/o/r@a..b",
        "git+https://h/o/$(id)@main",
        "git+https://h/o/r?x=1@main",
        "git+--upload-pack=x",
        "git+https://[h/o",
    ],
)
def test_what_is_neither_is_refused(sync: str) -> None:
    with pytest.raises(UsageError, match="--sync"):
        revision_of(sync)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="see --sync-secret") as told:
        revision_of("git+https://me:hunter2@h/o/r")
    assert "hunter2" not in str(told.value)


def test_a_secret_is_for_a_repository() -> None:
    with pytest.raises(UsageError, match="--sync-secret is for"):
        example("mpijob", sync="folder", sync_secret="mine")
