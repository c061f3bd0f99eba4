"""What the driver reads of a job's options."""

from __future__ import annotations

from typing import Protocol

from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.rules.membership.membership import Limits


class Rules(Protocol):
    """What the driver reads of the settings. Times in seconds."""

    @property
    def limits(self) -> Limits: ...
    @property
    def cooldown_s(self) -> tuple[float, float]: ...
    @property
    def heartbeat_timeout_s(self) -> float: ...
    @property
    def standby_timeout_s(self) -> float: ...
    @property
    def orphan_grace_s(self) -> float: ...
    @property
    def commit_wait_s(self) -> float:
        """How long a holder of the newest commit that cannot be reached is waited for."""

    @property
    def elastic_timeout_s(self) -> float: ...
    @property
    def reset_limit(self) -> int | None: ...
    @property
    def failure_budget(self) -> int: ...
    @property
    def restart_from_scratch(self) -> bool:
        """Whether a job of which nothing is left begins its training anew."""

    @property
    def below_min(self) -> str:
        """``wait``, ``sleep`` or ``fail``."""

    @property
    def sleep_after_s(self) -> float | None:
        """How long it has to be too few before the job goes to sleep; None if it never does."""

    @property
    def woken(self) -> bool:
        """The job has slept, or failed, after it had begun: it goes on, and does not begin."""

    @property
    def progress_timeout_s(self) -> float | None: ...
    @property
    def restart_stalled(self) -> bool: ...
    @property
    def drain_stragglers(self) -> bool: ...
    @property
    def engine(self) -> str:
        """``horovod``, ``mpirun`` or ``torchrun``."""

    @property
    def durability(self) -> Durability | None:
        """How checkpoints are made; None if they are not."""

    @property
    def commit_every(self) -> Cadence | None:
        """Every how many calls of ``commit()`` one is made; None is all of them."""
