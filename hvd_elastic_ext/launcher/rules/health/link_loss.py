"""Whether the launcher's own link is lost, rather than those of all hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def is_isolated(now: float, heard: Sequence[float], *, limit_s: float, grace_s: float) -> bool:
    """Whether hosts are silent, and no other host of the world could continue without them. Pure.

    ``heard``: when each host of the world was last heard. Hosts send three messages in ``limit_s``: one that was
    silent for half of it counts as silent here. Hosts that are all silent for longer than ``grace_s`` are gone.
    """
    if not heard or now - min(heard) <= limit_s:
        return False
    return limit_s / 2 < now - max(heard) <= max(limit_s, grace_s)
