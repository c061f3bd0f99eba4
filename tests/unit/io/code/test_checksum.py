"""One checksum for the same files, on every host."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.code import files
from hvd_elastic_ext.io.code.checksum import Wanted, checksum, looked_at, unpacked
from hvd_elastic_ext.io.code.files import Code, code_of


def filled(folder: Path) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("x = 1\n")
    (folder / "pkg" / "pärt.py").write_text("y = 1\n")
    return folder


def there(code: Code, folder: Path) -> dict[str, str]:
    """What an agent says that has the code in another folder."""
    return looked_at(unpacked(code.wanted)._replace(folder=str(folder)).packed())


def test_a_host_with_the_same_files_has_the_same_checksum_whatever_else_is_there(tmp_path: Path) -> None:
    code, other = code_of("--code", filled(tmp_path / "a")), filled(tmp_path / "b")
    (other / "out.log").write_text("made by training\n")
    (other / "pkg" / "__pycache__").mkdir()
    assert there(code, other) == {"folder": str(other), "sha256": code.sha256}


@pytest.mark.parametrize("change", ["x = 2\n", "x = 1\n\n", ""])
def test_a_file_with_other_bytes_gives_another_checksum(tmp_path: Path, change: str) -> None:
    code, other = code_of("--code", filled(tmp_path / "a")), filled(tmp_path / "b")
    (other / "train.py").write_text(change)
    assert there(code, other)["sha256"] != code.sha256


def test_bytes_that_move_from_one_file_to_another_give_another_checksum(tmp_path: Path) -> None:
    code, other = code_of("--code", filled(tmp_path / "a")), filled(tmp_path / "b")
    (other / "train.py").write_text("y = 1\n")
    (other / "pkg" / "pärt.py").write_text("x = 1\n")
    assert there(code, other)["sha256"] != code.sha256


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    code, other = code_of("--code", filled(tmp_path / "a")), filled(tmp_path / "b")
    (other / "train.py").unlink()
    assert there(code, other) == {"problem": "train.py: no such file or directory"}


def test_what_git_ignores_is_not_compared(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a")
    (folder / ".gitignore").write_text("out\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    before = code_of("--code", folder)
    (folder / "out").write_text("made by training\n")
    assert code_of("--code", folder) == before


def test_keys_and_journals_of_jobs_are_no_code(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a")
    before = code_of("--code", folder)
    (folder / ".hvd-elastic" / "job").mkdir(parents=True)
    (folder / ".hvd-elastic" / "job" / "key").write_text("a secret\n")
    assert code_of("--code", folder) == before
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    assert code_of("--code", folder) == before


def test_a_repository_that_ignores_all_is_not_sent_with_what_it_ignores(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a")
    (folder / ".gitignore").write_text("*\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    with pytest.raises(UsageError, match="git ignores all of its files"):
        code_of("--code", folder)


def test_files_that_change_while_they_are_read_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, packed = filled(tmp_path / "a"), files.packed

    def meanwhile(folder: Path, names: tuple[str, ...], *, private: bool) -> bytes:
        (folder / "train.py").write_text("x = 2\n")
        return packed(folder, names, private=private)

    monkeypatch.setattr(files, "packed", meanwhile)
    with pytest.raises(UsageError, match="its files change while they are read"):
        code_of("--code", folder, sender="j")


def test_what_cannot_be_compared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--code .*nowhere: there is no such folder"):
        code_of("--code", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="it has no files"):
        code_of("--code", tmp_path / "empty")
    monkeypatch.setattr(files, "MAX_NAMES", 10)
    with pytest.raises(UsageError, match="it has 2 files, too many to compare"):
        code_of("--code", filled(tmp_path / "a"))
    with pytest.raises(ValueError, match="MiB"):
        checksum(str(tmp_path), [_large(tmp_path)])
    assert code_of("--code", None) == Code()


def _large(folder: Path) -> str:
    with (folder / "large").open("wb") as file:
        file.truncate((256 << 20) + 1)
    return "large"


@pytest.mark.parametrize("data", [b"", b"x", Wanted("", ()).packed()[:-3]])
def test_what_is_no_list_is_a_problem_and_no_end_of_the_agent(data: bytes) -> None:
    assert "problem" in looked_at(data)


def test_an_agent_that_is_not_asked_loads_none_of_it() -> None:
    code = "import sys, hvd_elastic_ext.agent.job; assert 'hvd_elastic_ext.io.code' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(("piece", "times"), [(b" ", 49 << 20), (b"[", 200_000)], ids=["long", "deep"])
def test_a_list_without_measure_is_a_problem_and_no_end_of_the_agent(piece: bytes, times: int) -> None:
    assert "problem" in looked_at(zlib.compress(b"[" + piece * times + b"]"))


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    code, other = code_of("--code", filled(tmp_path / "a")), filled(tmp_path / "b")
    (other / "train.py").unlink()
    os.mkfifo(other / "train.py")
    assert there(code, other) == {"problem": "train.py: it is not a plain file"}
