"""What ``--sync`` names."""

from __future__ import annotations

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.spec.source import Revision, claim_of, revision_of, without_user
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


@pytest.mark.parametrize(
    "sync",
    [
        "git+https://me:hunter2@h/o/r",
        "git+https:me:hunter2@h",
        "git+https:/me:hunter2@h/o/r@main",
        "git+https:///me:hunter2@h/o/r",
        "git+me:hunter2@h/o/r",
        "git+https://[hunter2@h/o/r",
        "git+https://h/o/r?token=hunter2",
        "git+https://h/o/r#hunter2@h",
        "git+https://h/o/r@me:hunter2",
        "git+https://h/o/r@..hunter2",
        "git+ssh://me:hunter2@h/o/r",
        "https://me:hunter2@h/o/r",
        "https:me:hunter2@h/o/r",
        "GIT+https://me:hunter2@h/o/r",
        "me:hunter2@h/o/r",
        "hunter2@h/o/r",
    ],
)
def test_a_password_is_refused_and_not_repeated_wherever_it_stands(
    sync: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["submit", "digits", "--kind", "mpijob", "--image", "i", "--sync", sync, "--dry-run=client", "-o", "yaml"]
    assert cli.main([*words, "--", "python", "train.py"]) == 2
    said = capfd.readouterr()
    assert "--sync" in said.err
    assert "hunter2" not in said.out + said.err


def test_what_git_says_is_passed_on_without_a_password() -> None:
    said = "fatal: unable to access 'https://me:hunter2@h/o/r/': and http://h@x/ http://h/a@b"
    assert without_user(said) == "fatal: unable to access 'https://…@h/o/r/': and http://…@x/ http://h/a@b"


@pytest.mark.parametrize("sync", ["git+http://h/o/r", "git+HTTP://h/o/r@main"])
def test_a_secret_is_not_sent_in_the_clear(sync: str) -> None:
    with pytest.raises(UsageError, match="--sync-secret: it would be sent in the clear; write --sync git\\+https://"):
        example("mpijob", sync=sync, sync_secret="mine")
    example("mpijob", sync=sync)
    example("mpijob", sync="git+https://h/o/r", sync_secret="mine")


def test_a_claim_and_a_folder_in_it_are_meant() -> None:
    assert claim_of("pvc:data") == ("data", "")
    assert claim_of("pvc:data/a//b/") == ("data", "a/b")
    assert claim_of("folder") is None
    for wrong in ("pvc:", "pvc:/x", "pvc:data/../x", "pvc:Data", "pvc:a b", "pvc:data/x:y"):
        with pytest.raises(UsageError, match="write pvc:CLAIM"):
            claim_of(wrong)


def test_a_secret_is_for_a_repository() -> None:
    with pytest.raises(UsageError, match="--sync-secret is for"):
        example("mpijob", sync="folder", sync_secret="mine")
