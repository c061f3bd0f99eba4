"""An archive of code is the same for the same files, and unpacked it is those files."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import threading
from pathlib import Path

import pytest

from hvd_elastic_ext.io.code import archive
from hvd_elastic_ext.io.code.archive import KEPT, is_marked, mark, packed, unpack

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
        hostile("x", tarfile.LNKTYPE),
        hostile("x", tarfile.CHRTYPE),
        hostile(f"{KEPT}/=code", data=b"{}"),
        hostile("./x", data=b"x"),
        b"no archive",
        hostile("y", data=os.urandom(100_000))[:50_000],
    ],
    ids=[
        "above",
        "absolute",
        "above again",
        "a link",
        "a pipe",
        "a hard link",
        "a device",
        "ours",
        "dot",
        "no archive",
        "cut off",
    ],
)
def test_what_is_no_archive_of_files_in_a_folder_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"is not a file of a folder|the archive cannot be read"):
        unpack(io.BytesIO(data), tmp_path / "b")
    assert not (tmp_path / "x").exists()


def test_a_folder_where_a_file_is_to_be_is_named(tmp_path: Path) -> None:
    there = tmp_path / "b"
    (there / "train.py").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"train\.py: is a directory"):
        unpack(io.BytesIO(packed(filled(tmp_path / "a"), NAMES)), there)
    assert not files(there)


def test_results_in_a_file_that_was_sent_once_are_not_removed_with_it(tmp_path: Path) -> None:
    source, there = filled(tmp_path / "a"), tmp_path / "b"
    unpack(io.BytesIO(packed(source, NAMES)), there)
    (there / "train.py").write_text("hours of training\n")
    unpack(io.BytesIO(packed(source, NAMES[:1])), there)
    assert files(there) == {"pkg/part.py": "y = 1\n", "train.py": "hours of training\n"}
    unpack(io.BytesIO(packed(source, NAMES[:1])), there)
    assert (there / "train.py").exists()


@pytest.mark.parametrize("then", ["unpacked", "removed"])
def test_what_a_link_in_the_folder_leads_to_is_neither_written_nor_removed(tmp_path: Path, then: str) -> None:
    source, there, other = filled(tmp_path / "a"), tmp_path / "b", tmp_path / "other"
    unpack(io.BytesIO(packed(source, NAMES)), there)
    (there / "pkg").rename(other)
    (there / "pkg").symlink_to(other)
    if then == "removed":
        unpack(io.BytesIO(packed(source, NAMES[1:])), there)
    else:
        (source / "pkg" / "part.py").write_text("y = 2\n")
        with pytest.raises(ValueError, match="pkg: it is a link"):
            unpack(io.BytesIO(packed(source, NAMES)), there)
    assert (other / "part.py").read_text() == "y = 1\n"


@pytest.mark.parametrize("cut", [5_000, 50_000])
def test_an_archive_that_does_not_come_whole_changes_no_file(tmp_path: Path, cut: int) -> None:
    source, there = filled(tmp_path / "a"), tmp_path / "b"
    unpack(io.BytesIO(packed(source, NAMES)), there)
    (source / "train.py").write_text("x = 2\n")
    (source / "zoo.bin").write_bytes(os.urandom(60_000))
    with pytest.raises(ValueError, match="the archive cannot be read"):
        unpack(io.BytesIO(packed(source, [*NAMES, "zoo.bin"])[:-cut]), there)
    assert files(there) == {"pkg/part.py": "y = 1\n", "run.sh": "#!/bin/sh\n", "train.py": "x = 1\n"}
    assert [path.name for path in (there / KEPT).iterdir() if path.is_dir()] == []


def test_what_fails_its_check_changes_no_file(tmp_path: Path) -> None:
    def refused(staged: Path) -> None:
        raise ValueError((staged / "train.py").read_text().strip())

    with pytest.raises(ValueError, match="x = 1"):
        unpack(io.BytesIO(packed(filled(tmp_path / "a"), NAMES)), tmp_path / "b", refused)
    assert not files(tmp_path / "b")


def test_an_archive_without_measure_is_refused_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="more than 1 MiB"):
        unpack(io.BytesIO(hostile("x", data=bytes(2 << 20))), tmp_path / "b")
    assert not files(tmp_path / "b")


def test_two_archives_at_once_leave_the_files_of_one_of_them(tmp_path: Path) -> None:
    there, both = tmp_path / "b", threading.Barrier(2)
    ways = []
    for text in ("one", "two"):
        source = tmp_path / text
        source.mkdir()
        for number in range(50):
            (source / f"{number}.py").write_text(text)
        data = packed(source, [f"{number}.py" for number in range(50)])
        ways.append(
            threading.Thread(target=unpack, args=(io.BytesIO(data), there, lambda staged: both.wait(60) and None))
        )
    for way in ways:
        way.start()
    for way in ways:
        way.join(60)
    assert len(set(files(there).values())) == 1


def test_what_others_may_not_read_here_they_may_not_read_there(tmp_path: Path) -> None:
    source, there = filled(tmp_path / "a"), tmp_path / "b"
    (source / "train.py").chmod(0o600)
    (source / "run.sh").chmod(0o4700)
    unpack(io.BytesIO(packed(source, NAMES, private=True)), there)
    modes = {name: stat.S_IMODE((there / name).stat().st_mode) for name in NAMES}
    assert modes == {"pkg/part.py": 0o644, "train.py": 0o600, "run.sh": 0o700}


def test_a_folder_on_storage_that_all_have_is_known_by_its_mark_and_a_copy_is_not(tmp_path: Path) -> None:
    source = filled(tmp_path / "a")
    word = mark(source, "job")
    assert is_marked(source, word)
    assert mark(source, "other job") != word
    assert is_marked(source, word)
    assert not is_marked(tmp_path / "nowhere", word)
    assert not is_marked(source, "")
    assert mark(source / "train.py", "job") == ""


@pytest.mark.parametrize("job", ["lock", "sent-code", "code"])
def test_a_job_of_any_name_has_its_folder_beside_what_is_kept_of_code(tmp_path: Path, job: str) -> None:
    (tmp_path / KEPT / job).mkdir(parents=True)
    unpack(io.BytesIO(packed(filled(tmp_path / "a"), NAMES)), tmp_path)
    assert mark(tmp_path, job)
    assert (tmp_path / KEPT / job).is_dir()
