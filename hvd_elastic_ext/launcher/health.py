"""Who may not be used for now, and for how long. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hvd_elastic_ext.launcher.causes import NOT_STARTED as NOT_STARTED
from hvd_elastic_ext.launcher.causes import SIGNALLED as SIGNALLED
from hvd_elastic_ext.launcher.causes import SSH_FAILED as SSH_FAILED
from hvd_elastic_ext.launcher.causes import exit_cause as exit_cause
from hvd_elastic_ext.launcher.ledger import DEFAULT_COOLDOWN_S as DEFAULT_COOLDOWN_S
from hvd_elastic_ext.launcher.ledger import cooldown_s as cooldown_s


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What is held against one host: how often it failed, and until when (mono) it is blocked."""

    failures: int = 0
    blocked_until: float | None = None

    def struck(self, now: float, limits: tuple[float, float]) -> HostRecord:
        """The record after one more failure at ``now``; a host that is blocked already is not struck again."""
        if self.blocked(now):
            return self
        failures = self.failures + 1
        return HostRecord(failures, now + cooldown_s(failures, limits))

    def blocked(self, now: float) -> bool:
        return self.blocked_until is not None and now < self.blocked_until

    def cooled_down(self, now: float) -> bool:
        """True if a block has run out and nobody has taken note of it yet."""
        return self.blocked_until is not None and not self.blocked(now)

    def readmitted(self) -> HostRecord:
        """The record once the host may work again; its failures still count."""
        return replace(self, blocked_until=None)
