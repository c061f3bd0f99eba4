"""What a job gets of this machine: a folder is packed to the same bytes wherever it is, without what git ignores."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.cluster import making


def filled(folder: Path) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "pkg" / "part.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def names(data: bytes) -> dict[str, int]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {each.name: each.mode for each in archive}


def test_the_same_files_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = filled(tmp_path / "a"), filled(tmp_path / "b")
    os.utime(second / "train.py", (1, 1))
    assert making.packed_code(first) == making.packed_code(second)
    assert names(making.packed_code(first)) == {"pkg/part.py": 0o644, "run.sh": 0o755, "train.py": 0o644}
    (second / "train.py").write_text("print('bye')\n")
    assert making.packed_code(first) != making.packed_code(second)


def test_what_git_ignores_and_links_to_it_or_out_of_the_folder_stay_here(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a")
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "big.bin").write_bytes(b"0")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "part.py").symlink_to("pkg/part.py")
    (folder / "ignored").symlink_to("big.bin")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"0")
    assert {*names(making.packed_code(folder))} == {".gitignore", "train.py", "pkg/part.py", "part.py", "run.sh"}
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    assert {*names(making.packed_code(folder))} >= {".gitignore", "train.py", "pkg/part.py", "part.py"}
    assert {"big.bin", "link", "ignored"}.isdisjoint(names(making.packed_code(folder)))


def test_what_is_too_large_or_empty_or_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="it has no files"):
        making.packed_code(tmp_path)
    (tmp_path / "big").write_bytes(b"0" * 100)
    monkeypatch.setattr(making, "MAX_BYTES", 99)
    with pytest.raises(UsageError, match=r"100 bytes; .* put it on a claim: --sync pvc:CLAIM/FOLDER"):
        making.packed_code(tmp_path)
    with pytest.raises(UsageError, match="there is no such folder"):
        making.packed_code(tmp_path / "nowhere")


def test_a_folder_about_which_git_says_nothing_is_not_sent_with_what_it_ignores(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".git" / "config").write_text("[broken")
    with pytest.raises(UsageError, match="git does not say what is ignored: fatal: bad config"):
        making.packed_code(folder)


def test_a_repository_within_the_folder_is_refused_and_not_left_out(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a")
    for each in (folder, folder / "pkg"):
        subprocess.run(["git", "init", "-q", str(each)], check=True)
    with pytest.raises(UsageError, match=r"pkg/? is a repository of its own, which is not sent; sync a plain copy"):
        making.packed_code(folder)


# --- the ssh key


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
