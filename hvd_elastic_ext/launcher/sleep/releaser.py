"""Worker pods of a job that sleeps: released, requested from time to time, and restored when it wakes.

The job calls, in its loop::

    await releases.began()               # once: an earlier launcher may have ended while the job slept
    await releases.asleep(hosts_before)  # nothing of the job runs any more, and its state is on storage
    await releases.look(enough=…)        # any number of times; from ``enough`` on no worker is released
    await releases.woke()                # as many workers as before are asked for, in the background
    await releases.launcher_ends(code=75)         # instead: this launcher ends, and the job sleeps on

Only the last call waits for the cluster, for some seconds. A failed request is tried again after a while, for ever: it
never ends the sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Asleep
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.kube.errors import ApiError, client_needed
from hvd_elastic_ext.io.replaced_file import replace as replace_file
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.launcher.sleep import release_policy
from hvd_elastic_ext.launcher.sleep.release_policy import ReleaseAction, SleepProgress
from hvd_elastic_ext.launcher.sleep.replica_requests import to_delete

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.sleep.release_policy import ReleaseDecision, ReleaseLimits
    from hvd_elastic_ext.launcher.sleep.replica_requests import Seen
    from hvd_elastic_ext.launcher.sleep.replicas import Replicas

log = logging.getLogger(__name__)


FINAL_CALL_S: Final = 10.0
"""Longest time for the final call: a pod that ends rarely has more than 30 s."""
FILE: Final = "released.json"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Need:
    """Slots that the job needs, to begin and to go on; ``per_host``: the number of a host if nothing is known."""

    start: int
    least: int
    per_host: int | None = None


@dataclass(frozen=True, slots=True)
class WorkersNote:
    """The note for the time after a launcher's end. ``before``: the number of workers before, None if they are
    there; ``requested``: the number in the last request; ``slots``: those of each worker.
    """

    before: int | None = None
    requested: int | None = None
    slots: tuple[int, ...] = ()


class NoteFile:
    """Keeps a note in the job's folder. On a full disk it is lost; if possible, the object in the cluster has a
    copy.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def read(self) -> WorkersNote:
        """The note; an empty one if there is none, or if it cannot be read, which is logged."""
        try:
            raw = json.loads(self._path.read_text())
            before, requested, slots = raw["before"], raw["requested"], raw["slots"]
            if all(type(each) is int for each in (*slots, *(each for each in (before, requested) if each is not None))):
                return WorkersNote(before, requested, tuple(slots))
            log.warning("%s does not hold a note of this job's workers", self._path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, LookupError) as error:
            log.warning("%s cannot be read (%s)", self._path, error)
        return WorkersNote()

    def write(self, note: WorkersNote) -> None:
        """Replace the note as a whole. If that fails, it is logged and the old note stays."""
        try:
            replace_file(self._path, to_text({"before": note.before, "requested": note.requested, "slots": note.slots}))
        except OSError as error:
            log.warning("%s cannot be written (%s)", self._path, error.strerror)


def found(
    limits: ReleaseLimits,
    need: Need,
    folder: Path,
    *,
    record: Callable[..., None],
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> PodReleases:
    """In the cluster that ``$KUBECONFIG`` names, else that this machine belongs to; ``folder`` is the job's.

    Loads the official client: half a second, 45 MB. Raises :class:`UsageError` if there is no way to a cluster.
    """
    with client_needed("--sleep-releases"):
        from hvd_elastic_ext.launcher.sleep import replicas
    workers = replicas.found(limits.job, environ)
    return PodReleases(workers, limits, need, NoteFile(folder), record=record, clock=clock)


class PodReleases:
    """See the module's docstring. ``record`` writes an event into the journal."""

    def __init__(
        self,
        workers: Replicas,
        limits: ReleaseLimits,
        need: Need,
        note_file: NoteFile,
        *,
        record: Callable[..., None],
        clock: Clock,
    ) -> None:
        self._workers, self._limits, self._need, self._note_file = workers, limits, need, note_file
        self._record, self._clock = record, clock
        self._note = WorkersNote()
        self._progress: SleepProgress | None = None
        """None while the job does not sleep."""
        self._last_progress = SleepProgress()
        """What was asked for last, at the beginning or in the last sleep."""
        self._restore_due = self._starting = self._enough = False
        self._failures = 0
        self._last_error = ""
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._current_call: asyncio.Future[Any] | None = None
        """The call that runs in a thread; it goes on if its waiter is cancelled."""
        self._aside = BackgroundCalls()

    async def began(self) -> None:
        """The launcher has started."""
        self._note = await self._aside.call(self._note_file.read)
        self._restore_due = self._starting = True
        self._changed()

    async def asleep(self, hosts_before: HostSet) -> None:
        """The job has gone to sleep; ``hosts_before``: its hosts. A request of the beginning keeps its time limit."""
        slots = tuple(sorted({host.slots for host in hosts_before}))
        self._note = replace(self._note, slots=slots or self._note.slots)
        asked_at = self._last_progress.since if self._starting else None
        lasts = asked_at is not None and self._clock.mono() < asked_at + self._limits.wake_timeout_s
        self._progress = self._last_progress if lasts else SleepProgress()
        self._enough = False
        self._changed()

    async def look(self, *, enough: bool) -> None:
        """Note whether the job is about to wake. Only a change needs another call."""
        if enough != self._enough:
            self._enough = enough
            self._changed()

    async def woke(self) -> None:
        """The job goes on."""
        self._last_progress, self._progress = self._progress or SleepProgress(), None
        self._restore_due, self._starting = True, False
        self._changed()

    async def launcher_ends(self, *, code: int) -> None:
        """The launcher ends with this exit code. Its job may be started again, so its operator must still manage it."""
        await self.stop()
        try:
            await asyncio.wait_for(self._final_call(code), FINAL_CALL_S)
        except (ApiError, asyncio.TimeoutError) as error:
            self._fail(error)

    async def _final_call(self, code: int) -> None:
        if self._current_call is not None:
            await asyncio.gather(self._current_call, return_exceptions=True)
        kind, before = self._limits.job.kind, self._note.before
        if self._limits.suspends and code == Asleep.exit_code:
            count = before or (await self._call(self._workers.look)).replicas
            await self._call(self._workers.suspend, max(count, kind.valid))
            self._tell("released", "the job is suspended until it is resumed by hand", replicas=0)
        elif self._note.requested is not None and self._note.requested < kind.valid:
            await self._call(self._workers.tell, kind.valid, before=before)

    async def stop(self) -> None:
        """Stop the background task."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _changed(self) -> None:
        self._failures = 0
        self._soon.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="releases")

    async def _run(self) -> None:
        while True:
            self._soon.clear()
            try:
                at = await self.step()
            except Exception:
                log.exception("the workers of %s: a defect of hvd-elastic", self._limits.job)
                at = self._clock.mono() + release_policy.PAUSES_S[-1]
            left = None if at is None else max(0.0, at - self._clock.mono())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._soon.wait(), left)

    # --- what is due

    async def step(self) -> float | None:
        """Do what is due. Returns when time alone makes something due again (mono)."""
        now = self._clock.mono()
        try:
            again_at = await (self._restore() if self._progress is None else self._in_sleep(now, self._progress))
        except ApiError as error:
            self._failures += 1
            self._fail(error)
            return self._clock.mono() + release_policy.pause_s(self._failures)
        self._failures, self._last_error = 0, ""
        return again_at

    async def _in_sleep(self, now: float, progress: SleepProgress) -> float | None:
        rest = release_policy.without_look(now, progress, self._limits, enough=self._enough)
        if rest is not None:
            return rest.again_at
        seen = await self._call(self._workers.look)
        if self._progress is not progress or self._enough:
            return now  # meanwhile it has woken, or is about to wake
        return await self._act(release_policy.decide(now, progress, seen, self._limits), progress, seen)

    async def _act(self, decision: ReleaseDecision, progress: SleepProgress, seen: Seen) -> float | None:
        kind = self._limits.job.kind
        match decision.act:
            case ReleaseAction.RELEASE:
                await self._tell_workers(kind.fewest, seen)
                self._set_progress(
                    progress, SleepProgress(since=self._clock.mono(), deletions_done=not kind.invalid_without_workers)
                )
                self._tell("released", decision.reason, replicas=kind.fewest, before=self._note.before)
                return self._clock.mono()
            case ReleaseAction.ASK:
                wanted = self._wanted(self._need.least, seen)
                await self._tell_workers(wanted, seen)
                self._set_progress(progress, SleepProgress(wanted, self._clock.mono()))
                self._tell("workers_requested", decision.reason, replicas=wanted)
                return self._clock.mono()
            case ReleaseAction.ADOPT:
                self._note = replace(self._note, before=seen.replicas)  # an awake job keeps this number, too
                self._set_progress(progress, SleepProgress(seen.replicas, self._clock.mono()))
                self._tell("workers_requested", decision.reason, replicas=seen.replicas)
                return self._clock.mono()
            case ReleaseAction.DELETE:
                await self._call(self._workers.delete, to_delete(self._limits.job, seen))
            case ReleaseAction.WAIT:
                self._set_progress(progress, replace(progress, deletions_done=True))
        return decision.again_at

    def _set_progress(self, progress: SleepProgress, new: SleepProgress) -> None:
        self._last_progress = new
        if self._progress is progress:  # it has not woken meanwhile
            self._progress = new

    async def _restore(self) -> float | None:
        """Request as many workers as before."""
        if not self._restore_due:
            return None
        seen, kind = await self._call(self._workers.look), self._limits.job.kind
        if not kind.scale and seen.before is None:
            self._note = WorkersNote(
                slots=self._note.slots
            )  # the released workers belonged to another object of this name
        before = self._note.before or seen.before
        if before is None and self._starting and seen.replicas == 0:
            before = self._wanted(self._need.start, seen)
        count = release_policy.restored(seen, before, self._note.requested, kind)
        if self._progress is not None:
            return self._clock.mono()
        if count is not None or seen.before is not None:
            await self._call(self._workers.tell, seen.replicas if count is None else count, before=None)
        if count is not None:
            self._last_progress = SleepProgress(count, self._clock.mono())
            self._tell("workers_requested", "the job needs its workers", replicas=count)
        self._restore_due = False
        self._note = WorkersNote(slots=self._note.slots)
        await self._aside.call(functools.partial(self._note_file.write, self._note))
        return None

    # --- what is remembered

    def _wanted(self, slots: int, seen: Seen) -> int:
        guess = self._need.per_host or seen.slots or 1
        return release_policy.workers_for(slots, self._note.slots, guess=guess, before=self._note.before or 0)

    async def _tell_workers(self, replicas: int, seen: Seen) -> None:
        """Write the note first: after it, the launcher or the request may end at any time."""
        before = self._note.before or seen.before
        if before is None and seen.replicas > self._limits.job.kind.fewest:
            before = seen.replicas
        self._note = WorkersNote(before, replicas, self._note.slots)
        await self._aside.call(functools.partial(self._note_file.write, self._note))
        await self._call(self._workers.tell, replicas, before=before)

    async def _call(self, act: Callable[..., T], *args: Any, **named: Any) -> T:
        """In a thread, one at a time."""
        call = asyncio.ensure_future(self._aside.call(functools.partial(act, *args, **named)))
        self._current_call = call
        return await asyncio.shield(call)

    def _tell(self, event: str, reason: str, **fields: Any) -> None:
        text = f"{self._limits.job} is to have {fields['replicas']} workers: {reason}"
        self._record(event, reason=text, **{name: value for name, value in fields.items() if value is not None})

    def _fail(self, error: BaseException) -> None:
        why = f"{self._limits.job}: {str(error) or f'no answer within {FINAL_CALL_S:g} s'}"
        if why != self._last_error:
            self._last_error = why
            self._record("workers_not_requested", reason=why)
