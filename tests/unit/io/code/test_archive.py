"""An archive of code is the same for the same files, and unpacked it is those files."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from hvd_elastic_ext.io.code.archive import KEPT, packed, unpack

NAMES = ["pkg/part.py", "run.sh", "train.py"]


def filled(folder: Path) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("x = 1\n")
    (folder / "pkg" / "part.py").write_text("y = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and KEPT not in path.parts)
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def test_files_come_back_as_they_were_into_a_folder_that_was_not_there(tmp_path: Path) -> None:
    source, there = filled(tmp_path / "a"), tmp_path / "new" / "b"
    unpack(io.BytesIO(packed(source, NAMES)), there)
    assert files(there) == files(source)
    assert os.access(there / "run.sh", os.X_OK)
    assert not os.access(there / "train.py", os.X_OK)


def test_the_same_files_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = filled(tmp_path / "a"), filled(tmp_path / "b")
    os.utime(second / "train.py", (1, 1))
    assert packed(first, NAMES) == packed(second, NAMES)


def test_what_was_sent_before_and_is_no_more_goes_and_what_others_made_stays(tmp_path: Path) -> None:
    source, there = filled(tmp_path / "a"), tmp_path / "b"
    unpack(io.BytesIO(packed(source, NAMES)), there)
    (there / "out.log").write_text("made by training\n")
    (source / "train.py").write_text("x = 2\n")
    unpack(io.BytesIO(packed(source, NAMES[1:])), there)
    assert files(there) == {"out.log": "made by training\n", "run.sh": "#!/bin/sh\n", "train.py": "x = 2\n"}


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    source, there, other = filled(tmp_path / "a"), tmp_path / "b", tmp_path / "other"
    other.write_text("mine\n")
    there.mkdir()
    (there / "train.py").symlink_to(other)
    unpack(io.BytesIO(packed(source, NAMES)), there)
    assert (other.read_text(), (there / "train.py").read_text()) == ("mine\n", "x = 1\n")


def hostile(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        hostile("../x"),
        hostile("/x"),
        hostile("a/../../x"),
        hostile("x", tarfile.SYMTYPE),
        hostile("x", tarfile.FIFOTYPE),
        b"no archive",
        hostile("y", data=os.urandom(100_000))[:50_000],
    ],
    ids=["above", "absolute", "above again", "a link", "a pipe", "no archive", "cut off"],
)
def test_what_is_no_archive_of_files_in_a_folder_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"is no file of a folder|the archive cannot be read"):
        unpack(io.BytesIO(data), tmp_path / "b")
    assert not (tmp_path / "x").exists()


def test_a_folder_where_a_file_is_to_be_is_named(tmp_path: Path) -> None:
    there = tmp_path / "b"
    (there / "train.py").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"train\.py: is a directory"):
        unpack(io.BytesIO(packed(filled(tmp_path / "a"), NAMES)), there)
    assert [path.name for path in there.iterdir() if path.name.endswith("hvd-elastic-new")] == []
