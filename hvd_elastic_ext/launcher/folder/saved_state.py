"""The job's state for the next launcher, and what writes it without waiting for a slow disk."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.io.background_calls import BackgroundCalls
from hvd_elastic_ext.launcher.folder import runs
from hvd_elastic_ext.launcher.folder.state_folder import Saved
from hvd_elastic_ext.launcher.options import options_json
from hvd_elastic_ext.launcher.planners.membership import custody, resize_report
from hvd_elastic_ext.launcher.rules.health import ledger_json
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.rules.membership.custody import Stored
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.options import JobOptions

log = logging.getLogger(__name__)

CLOSE_S: Final = 30.0
"""How long the end of a job waits until its last state is written."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What a session takes over from those before it.

    ``last_hosts``: the last host list that was not empty. ``woken``: the job has slept, or failed after it had trained.
    ``expects``: path of a checkpoint that exists.
    """

    saved: Saved
    last_hosts: HostSet = field(default_factory=HostSet)
    woken: bool = False
    expects: str | None = None


def state_of(
    job: JobState, *, incarnation: int, ports: Mapping[str, int], wall: float, run: str | None = None
) -> Saved:
    """The state for the next launcher, as of now and ``wall`` (Unix seconds). ``run``: its name.

    Agents report themselves what runs and what they hold, so that is not in it.
    """
    agents, untold = job.roster.agents.values(), job.shutdown.untold
    there = [*job.adoption.missing.values(), *untold.values(), *(agent.host for agent in agents)]
    more = {
        runs.RUN: run,
        "hosts": {host.name: host.slots for host in there},
        "finished": job.outcome.over and not untold,
        "ports": ports,
        "checkpoint": job.checkpoints.only_here,
        "stored": job.checkpoints.stored,
        "resized": resize_report.to_json(job, job.now, wall=wall),
        "commits": custody.noted(job, over=job.outcome.over, well=job.outcome.failure is None),
    }
    return Saved(incarnation, job.generation, ledger_json.to_json(job.faults.ledger, job.now, wall=wall), more)


def job_of(
    saved: Saved,
    options: JobOptions,
    *,
    now: float,
    wall: float,
    errands: int | None = None,
    expects: str | None = None,
) -> JobState:
    """The state with which the next launcher begins, as of ``now`` (mono) and ``wall`` (Unix seconds).

    ``expects``: a checkpoint that is known to have been made. ``errands``: a number that no earlier launcher has had.
    """
    return JobState.new(
        options,
        now,
        errands=secrets.randbelow(1 << 48) if errands is None else errands,
        ledger=HealthLedger() if saved.ledger is None else ledger_json.from_json(saved.ledger, now, wall=wall),
        generation=saved.generation,
        expects=expects,
        commits=noted if isinstance(noted := saved.more.get("commits"), list) else [],
        stored=stored_of(saved, place=None if options.durability is None else options.durability.place),
    )


def start_of(saved: Saved, job: JobState, *, wall: float, expects: str | None) -> dict[str, Any]:
    """What :func:`again` needs to begin as ``job`` did, for a recording of its events."""
    own = {"mono": job.now, "wall": wall, "errands": job.errands, "expects": expects}
    return {**own, "options": options_json.to_json(job.options), "saved": asdict(saved)}


def again(start: Mapping[str, Any]) -> JobState:
    """The state with which a recorded launcher began. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    saved, options = Saved(**start["saved"]), options_json.from_json(start["options"])
    now, wall = start["mono"], start["wall"]
    return job_of(saved, options, now=now, wall=wall, errands=start["errands"], expects=start["expects"])


def write_noted_change(saved: Saved, *, journal: Journal, clock: Clock) -> None:
    """Write the journal line of a change whose cost the last launcher awaited; how long it took is unknown."""
    match saved.more.get("resized"):
        case {"generation": int(generation), "at": float(at), "fields": {"steps_lost": _} as fields}:
            ago = max(0.0, clock.wall() - at)
            journal.record("resized", generation=generation, at_mono=clock.mono() - ago, **fields, downtime_s=None)


def hosts_left(saved: Saved) -> list[Host]:
    """Hosts on which processes may run, of a job that its launcher did not end."""
    left = saved.more.get("hosts") if not saved.more.get("finished") else None
    return [Host(str(name), int(slots)) for name, slots in (left or {}).items()]


def checkpoint_of(saved: Saved, *, place: str | None) -> str | None:
    """A checkpoint in ``place`` that exists only on the hosts that made it; None if there is none."""
    path = saved.more.get("checkpoint")
    return path if isinstance(path, str) and place is not None and path.startswith(f"{place}/") else None


def stored_of(saved: Saved, *, place: str | None) -> Stored | None:
    """The newest checkpoint in ``place`` that the last launcher knew of."""
    match saved.more.get("stored"):
        case [[int(a), int(b), int(c)], int(step), str(path)] if place is not None and path.startswith(f"{place}/"):
            return Stored((a, b, c), step, path)
    return None


def ports_of(saved: Saved) -> dict[str, int]:
    """Port on which the last launcher listened, by address."""
    ports = saved.more.get("ports")
    found = ports.items() if isinstance(ports, dict) else ()
    return {str(address): port for address, port in found if type(port) is int and 0 < port < 1 << 16}


class StateWriter:
    """Calls ``save`` in a thread, once at a time; ``save`` may be slow and reports its own errors.

    Of waiting states only the newest is written. It is asked for after the present event: half of a change must not be
    saved.
    """

    def __init__(self, save: Callable[[Saved], bool]) -> None:
        self._save = save
        self._calls = BackgroundCalls()
        self._next: Callable[[], Saved] | None = None
        self._task: asyncio.Task[None] | None = None

    def soon(self, state: Callable[[], Saved]) -> None:
        """Write ``state()`` in the background, unless a newer one comes first. Call it in the loop."""
        self._next = state
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        """Wait for the last state."""
        if self._task is not None and not (await asyncio.wait([self._task], timeout=CLOSE_S))[0]:
            log.warning("the job's last state is not written after %g s: the disk does not answer", CLOSE_S)

    async def _work(self) -> None:
        while (state := self._next) is not None:
            self._next = None
            try:
                await self._calls.call(functools.partial(self._save, state()))
            except Exception:
                log.exception("a defect of hvd-elastic: the job's state is not written")
