"""How a file gets onto a disk: without a copy in the system's cache where the file system can."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.checkpoint.format.tensor_places import SECTOR
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from tests.support.fake_disk import Disk


class Watched(Disk):
    """A disk that tells how much was written past the cache."""

    def __init__(self, *, can: bool = True, refuses: Sequence[str] = ()) -> None:
        super().__init__()
        self.can, self.refuses = can, refuses
        self.written = {True: 0, False: 0}

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_DIRECT and not self.can:
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().open(path, flags, mode, dir_fd=dir_fd)

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int:
        past = fd in self._past_cache
        if past and type(buffers[0].obj).__name__ in self.refuses:
            raise OSError(errno.EINVAL, "Invalid argument")
        self.written[past] += sum(map(len, buffers))
        return super().pwritev(fd, buffers, offset)


LENGTH = 3 * SECTOR + 100
DATA = os.urandom(LENGTH)
APART = [memoryview(DATA)[:70], memoryview(DATA)[70:]]


@pytest.mark.parametrize(
    ("block", "limits", "past"),
    [
        ([memoryview(DATA)], {}, 3 * SECTOR),
        (APART, {}, 3 * SECTOR),
        ([memoryview(DATA)], {"refuses": ["bytes"]}, 3 * SECTOR),
        ([memoryview(DATA)], {"refuses": ["bytes", "mmap"]}, 0),
        (APART, {"refuses": ["mmap"]}, 0),
        (APART, {"can": False}, 0),
        ([memoryview(DATA)[:SECTOR], memoryview(DATA)[SECTOR:]], {}, 3 * SECTOR),
    ],
    ids=["whole", "in pieces", "memory that is not aligned", "never", "never in pieces", "cannot", "at a sector"],
)
def test_whole_sectors_go_past_the_cache_where_that_is_possible_and_the_rest_through_it(
    block: list[memoryview], limits: dict[str, Any], past: int
) -> None:
    disk = Watched(**limits)
    store = LocalStore(Path("/store"), disk)
    store.write("one", "file", [block, block[:1]], length=LENGTH + len(block[0]))
    read = bytearray(LENGTH + len(block[0]))
    store.read("one", "file", 0, [memoryview(read)])
    assert read == DATA + bytes(block[0])
    assert disk.written == {True: past, False: len(read) - past}


def test_a_real_file_is_the_same_however_it_was_written(tmp_path: Path) -> None:
    aligned = mmap.mmap(-1, 5 * SECTOR)
    aligned[:] = os.urandom(5 * SECTOR)
    store, view = LocalStore(tmp_path), memoryview(aligned)
    blocks = [[view[: 2 * SECTOR]], [view[3:40], view[40 : 3 + SECTOR]], [view[SECTOR : SECTOR + 5000]]]
    wanted = b"".join(piece for block in blocks for piece in block)
    store.write("one", "file", blocks, length=len(wanted))
    assert (tmp_path / "one" / "file").read_bytes() == wanted
