"""Commit memory of one slot: made once, held for whoever trains in the slot, gone with its last holder."""

from __future__ import annotations

import os
from typing import Final

from hvd_elastic_ext.core.side import KEPT_AT

_MFD_NOEXEC_SEAL: Final = 8
"""Machines may be set to refuse memory that could be executed; kernels before 6.3 do not know the flag."""


class CommitMemory:
    """``count`` memfds, empty at first: the training process sizes and fills them. Nobody inherits them unasked."""

    def __init__(self, slot: int, count: int) -> None:
        self.descriptors: tuple[int, ...] = ()
        try:
            for number in range(count):
                self.descriptors += (_memfd(f"hvd-commit-{slot}-{number}"),)
        except OSError:
            self.close()
            raise

    def drop_kept(self) -> None:
        """No commit has to stay where it is any more."""
        for descriptor in self.descriptors:
            if os.fstat(descriptor).st_size > KEPT_AT:
                os.pwrite(descriptor, b"\0", KEPT_AT)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


def _memfd(name: str) -> int:
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(name, os.MFD_CLOEXEC)
