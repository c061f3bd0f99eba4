"""Whether a training process that ended is started again in its slot. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

ABORTED: Final = 134
"""128 + SIGABRT: how a process ends that Horovod aborts, which it does whenever a rendezvous fails."""


class RestartPolicy(NamedTuple):
    """Exit codes after which a process is started again, at most ``limit`` times in any ``within_s`` seconds.

    The pause before a restart is ``pause_s`` and doubles with each further one
    in that time, up to ``pause_max_s``. By default nothing is restarted: on
    Horovod's own driver a restarted process never asks for its new rank.
    """

    codes: Collection[int] = ()
    limit: int = 5
    within_s: float = 3600.0
    pause_s: float = 0.5
    pause_max_s: float = 30.0


def decide(now: float, exit_code: int, history: Sequence[float], *, limits: RestartPolicy) -> tuple[float | None, str]:
    """Seconds until the restart, or None for none; and why.

    ``history`` holds the times of earlier restarts on ``now``'s clock; ``exit_code`` is as a shell tells it.
    """
    if exit_code not in limits.codes:
        return None, f"exit code {exit_code} is none to restart after"
    recent = sum(now - moment < limits.within_s for moment in history)
    if recent >= limits.limit:
        return None, f"exit code {exit_code}, but it was restarted {recent} times in {limits.within_s:g} s already"
    # Doubling stops mattering long before a float overflows.
    pause = min(limits.pause_max_s, limits.pause_s * 2.0 ** min(recent, 64))
    return pause, f"exit code {exit_code}, restart {recent + 1} of {limits.limit} in {limits.within_s:g} s"
