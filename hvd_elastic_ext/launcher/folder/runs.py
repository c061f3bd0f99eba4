"""Which run of a job this is: a new one, or the one that the launcher before this one did not end. Pure.

Done, failed or stopped, a run has ended, and the next one begins with a clean ledger and figures of its own. A run
has not ended if its launcher was killed, if it sleeps, or if something of it may still be running: the next launcher
continues it.
"""

from __future__ import annotations

import time
from dataclasses import replace

from hvd_elastic_ext.launcher.folder.saved import Saved
from hvd_elastic_ext.launcher.health import ledger_json


def name_of(wall: float, random: int) -> str:
    """A run's name: when it began (UTC), and a random part. Names sort by time."""
    thousandths = int(wall % 1.0 * 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(wall))}.{thousandths:03d}-{random & 0xFFFF:04x}"


def started(saved: Saved | None, *, fresh: str, resume: bool) -> Saved:
    """The saved state with which a launcher starts now, with the name of its run: ``fresh`` if it is a new run.

    ``resume``: continue the last run even if it has ended.
    """
    if saved is None:
        return Saved(run=fresh)
    if resume or not saved.ended:
        return replace(saved, run=saved.run or fresh, ended=False)
    # These are valid for any run: blocks by hand, where checkpoints are, and where the launcher listened.
    return Saved(
        saved.incarnation,
        run=fresh,
        at=saved.at,
        ledger=ledger_json.by_hand(saved.ledger),
        ports=saved.ports,
        only_here=saved.only_here,
        stored=saved.stored,
    )
