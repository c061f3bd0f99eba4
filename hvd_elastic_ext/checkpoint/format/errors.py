"""Errors of storage and of checkpoints, classified by what the caller should do.

Transient
└── StoreFailed     an operation of storage fails now: keep the last checkpoint, try again later
Permanent
├── Missing         the requested file or checkpoint does not exist
└── Damaged         a checkpoint exists but is not whole: use the one before
"""

from __future__ import annotations

from hvd_elastic_ext.core.errors import Permanent, Transient


class StoreFailed(Transient):
    """Storage failed temporarily. ``where`` names the file or folder. The last sealed checkpoint is unchanged."""

    def __init__(self, where: str, why: object, remedy: str = "check the storage") -> None:
        super().__init__(f"{where}: {why}; {remedy}")


class Missing(Permanent):
    """``where`` does not exist."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} is not there; `hvd-elastic checkpoints list` shows what is there")


class Unreadable(Permanent):
    """``where`` exists, but cannot be read, for instance because the disk is damaged."""

    def __init__(self, where: str, why: object) -> None:
        super().__init__(f"{where} cannot be read: {why}; check the disk, and take another checkpoint")


class Damaged(Permanent):
    """The checkpoint ``name`` is not what was sealed; ``why`` names the file and what is wrong with it."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self.why = why
        super().__init__(f"checkpoint {name} is damaged: {why}; take the one before, and remove this one")
