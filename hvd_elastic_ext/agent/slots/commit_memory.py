"""Commit memory of one slot: it outlives the processes that train there."""

from __future__ import annotations

import fcntl
import os
from typing import Final

from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.commit_record import KEPT_AT, PAGE, Sealed, held, newest

_MFD_NOEXEC_SEAL: Final = 8
"""A machine may refuse memory without this flag, because it could be executed. Kernels before 6.3 lack the flag."""
_F_ADD_SEALS: Final = 1033
_F_SEAL_SHRINK: Final = 2


class CommitMemory:
    """``count`` memfds for commits and one for the results of training calls, empty at first: the training process
    sizes and fills them. Not inherited unless passed on.
    """

    def __init__(self, slot: int, count: int) -> None:
        self.descriptors: tuple[int, ...] = ()
        self.past = -1
        """The file of the results (:mod:`hvd_elastic_ext.core.call_results`)."""
        try:
            self.past = _memfd(f"hvd-results-{slot}")
            for number in range(count):
                self.descriptors += (_memfd(f"hvd-commit-{slot}-{number}"),)
        except OSError:
            self.close()
            raise

    def drop_kept(self) -> None:
        """Let kept commits be overwritten."""
        for descriptor in self.descriptors:
            if os.fstat(descriptor).st_size > KEPT_AT:
                os.pwrite(descriptor, b"\0", KEPT_AT)

    @property
    def size(self) -> int:
        """Bytes of this machine's memory that it uses."""
        return sum(os.fstat(descriptor).st_blocks * 512 for descriptor in (*self.descriptors, self.past))

    @property
    def results(self) -> int:
        """How many results of training calls are there."""
        return call_results.count(self.past)

    def held(self) -> list[int] | None:
        """The newest commit of a world in this memory, if any: incarnation, generation, number and step."""
        newest_sealed = held(map(_sealed, self.descriptors))
        if newest_sealed is None:
            return None
        record = newest_sealed[1].record
        return [*record.identity[1:], record.step]

    def close(self) -> None:
        """Close the descriptors. The memory is freed when no process has it open or mapped. Can be called again."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        if self.past >= 0:
            os.close(self.past)
        self.descriptors, self.past = (), -1


def _sealed(descriptor: int) -> Sealed | None:
    size = os.fstat(descriptor).st_size
    return None if size < PAGE else newest(os.pread(descriptor, PAGE, 0), size - PAGE)


def _memfd(name: str) -> int:
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # Several processes lengthen it, each to what it needs. None may shorten it while another uses it.
    fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
    return descriptor
