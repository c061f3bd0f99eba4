"""The ssh key of a job."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.cluster import making


def test_a_key_is_made_here_and_no_file_of_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    key, public = (base64.b64decode(each) for each in making.new_key("digits"))
    assert key.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert public.endswith(b" digits\n")
    assert list(tmp_path.iterdir()) == []


def test_without_the_program_it_is_told_what_else_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="or give --ssh-secret"):
        making.new_key("digits")
