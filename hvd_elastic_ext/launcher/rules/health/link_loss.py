"""Whether the launcher's own link is lost, rather than those of all hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def is_isolated(now: float, last_messages: Sequence[float], *, limit_s: float, grace_s: float) -> bool:
    """Whether hosts are silent, and no other host of the world could continue without them. Pure.

    ``last_messages``: the time of each host's last message. Hosts send three messages in ``limit_s``, so half of it
    without one counts as silence here. Hosts that are all silent for longer than ``grace_s`` are gone.
    """
    if not last_messages or now - min(last_messages) <= limit_s:
        return False
    return limit_s / 2 < now - max(last_messages) <= max(limit_s, grace_s)
