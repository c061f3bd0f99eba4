"""How long an agent goes on without a launcher. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Orphan(NamedTuple):
    """An agent without a launcher, since ``lost_at``.

    ``trains``: a process runs that has been in a world. ``failed``: since then
    one has ended, or asked what only a launcher can answer.
    """

    lost_at: float
    trains: bool
    failed: bool


def decide(now: float, orphan: Orphan, grace_s: float) -> tuple[bool, str]:
    """Whether to end everything, and why.

    Training that needs no launcher goes on until its next failure. Everything else ends after the grace.
    """
    alone_s = now - orphan.lost_at
    if alone_s < grace_s:
        return False, f"without a launcher for {alone_s:.0f} s of {grace_s:g} s"
    if orphan.trains and not orphan.failed:
        return False, "training goes on by itself"
    return True, f"there has been no launcher for {grace_s:g} s"
