"""Which run of a job this is: a new one, or the one that the launcher before this one did not end. Pure.

Done, failed or stopped, a run has ended, and the next one begins with a clean ledger and figures of its own. A run
has not ended if its launcher was killed, if it sleeps, or if something of it may still be running: the next launcher
continues it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from hvd_elastic_ext.launcher.folder.state_folder import Saved
from hvd_elastic_ext.launcher.rules.health import ledger_json

RUN: Final = "run"
ENDED: Final = "ended"
KEPT_BETWEEN_RUNS: Final = ("checkpoint", "stored", "ports")
"""What holds for any run: where checkpoints are, and where the launcher listened."""


def name_of(wall: float, random: int) -> str:
    """A run's name: when it began (UTC), and a random part. Names sort by time."""
    thousandths = int(wall % 1.0 * 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(wall))}.{thousandths:03d}-{random & 0xFFFF:04x}"


def has_ended(saved: Saved) -> bool:
    """Whether the run that was saved is over."""
    return saved.more.get(ENDED) is True


def ended(saved: Saved) -> Saved:
    """The state of a run that has ended."""
    return replace(saved, more={**saved.more, ENDED: True})


def begun(saved: Saved | None, *, fresh: str, resume: bool) -> Saved:
    """What a launcher that starts now goes by; its ``more`` has the run's name, ``fresh`` if it is a new one.

    ``resume``: go on with the last run even if that has ended.
    """
    if saved is None:
        return Saved(more={RUN: fresh})
    if resume or not has_ended(saved):
        return replace(saved, more={RUN: fresh, **saved.more, ENDED: False})
    kept = {key: saved.more[key] for key in KEPT_BETWEEN_RUNS if key in saved.more}
    return Saved(saved.incarnation, 0, ledger_json.by_hand(saved.ledger), {**kept, RUN: fresh})
