"""The durations in a simulated cluster, in seconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

LATENCY_S: Final = 0.001
"""Latency of a message between launcher and agent."""
AGAIN_S: Final = 0.2
"""First pause before a lost connection is made again. Each pause doubles, up to :data:`AGAIN_MOST_S`."""
AGAIN_MOST_S: Final = 5.0
RESEND_S: Final = 1.0
"""Messages from the last so many seconds before a connection broke are sent again, because they may be lost."""


@dataclass(frozen=True, slots=True)
class Times:
    """``agent_s``: from the order to start an agent until it connects. ``boot_s``: from the start of a process until it
    is ready. ``go_s``: from the order to go live until it asks for its rank. ``join_s``: from the ranks until all are
    connected. ``sync_s``: until they agree on the state. ``lost_s``: both together, for a world after a loss; None: as
    for other worlds. ``notice_s``: until the others notice a lost peer.

    ``step_s``, ``agent_s`` and ``boot_s`` may differ by kind of host: see :meth:`of`. ``spread``: standard deviation of
    the logarithm of ``agent_s``, ``boot_s``, ``transfer_s``, ``write_s`` and ``load_s``; 0 makes them constants.
    ``sizes``: seconds of a step, by number of ranks, if they differ; other sizes are interpolated, see :meth:`step`.
    ``cold_s``: additional seconds of the boot of processes before the first world.
    ``every``: steps from one call of ``commit()`` to the next. ``commit_s``: seconds that a commit adds to its step.
    ``averages``: 1 if ranks train alone and average at each commit: then the loss of one takes back no step of the
    others, and a notice is followed at the next step. 0: they step together.
    ``stall_s``: seconds that a checkpoint adds at its commit. ``slowed``: the share by which steps are slower while it
    is written, which takes ``write_s``. ``seal_s``: seconds to complete it.
    ``every_step``: whether each step is a separate event. Else many steps are one event, and heartbeats arrive when the
    driver looks, so that the simulation of a large or long job takes less time.
    """

    step_s: float = 1.0
    every: int = 1
    averages: float = 0.0
    commit_s: float = 0.0
    agent_s: float = 2.0
    boot_s: float = 30.0
    cold_s: float = 0.0
    go_s: float = 0.1
    join_s: float = 1.0
    sync_s: float = 1.0
    lost_s: float | None = None
    notice_s: float = 0.01
    ends_s: float = 0.05
    grace_s: float = 5.0
    gloo_s: float = 30.0
    """Seconds that Gloo waits for a silent peer, until the world is lost."""
    beat_s: float = 1.0
    helper_s: float = 0.3
    """Seconds to start a helper."""
    transfer_s: float = 2.0
    write_s: float = 10.0
    seal_s: float = 0.2
    load_s: float = 10.0
    stall_s: float = 0.0
    slowed: float = 0.0
    bytes: int = 1 << 20
    """Bytes of a commit."""
    publish_s: float = 1.0
    """Seconds from a change of the hosts until it is published."""
    host_s: float = 60.0
    """Seconds from the request for a host until it exists, for a job that requests hosts."""
    spread: float = 0.0
    every_step: bool = False
    kinds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Times that differ, by kind of host."""
    sizes: Mapping[int, float] = field(default_factory=dict)

    def of(self, kind: str, name: str) -> float:
        """Return a time, by its field's name, on a kind of host."""
        own = self.kinds.get(kind)
        value: float = getattr(self, name) if own is None or name not in own else own[name]
        return value

    def meets(self, usual_s: float, after_loss: bool) -> float:
        """Return the seconds that a world needs to join or sync; usually ``usual_s``."""
        return usual_s if self.lost_s is None or not after_loss else self.lost_s / 2

    def step(self, kind: str, size: int) -> float:
        """Return the seconds of a step on a kind of host, in a world of ``size`` ranks."""
        return self.of(kind, "step_s") * self._share(size)

    def _share(self, size: int) -> float:
        """Return the time of a step in a world of a size, as a share of ``step_s``."""
        known = sorted(self.sizes)
        if not known:
            return 1.0
        at = bisect_left(known, size)
        low, high = known[max(0, at - 1)], known[min(at, len(known) - 1)]
        part = 0.0 if high == low else min(1.0, max(0.0, (size - low) / (high - low)))
        return (self.sizes[low] * (1.0 - part) + self.sizes[high] * part) / self.step_s
