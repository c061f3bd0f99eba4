"""``--reap-failed``: deletes the pods that :mod:`discover.actions.reap_policy` names, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from discover.actions.event_policy import PodNote
from discover.actions.picture import ClusterView
from discover.actions.reap_policy import (
    SHUTTING_DOWN,
    Deletion,
    ReapLimits,
    ReapState,
    decide_deletions,
    deleted,
    refused,
)
from discover.common.background import Aside
from discover.kube.backoff import Backoff
from discover.kube.changes import CONFLICT, NOT_ALLOWED, NOT_FOUND, NOT_YET, Sender, lacks_right, path_of, said
from discover.kube.transport import Failure, RequestFailed
from discover.selection.objects import Key
from discover.selection.operators import JobView
from discover.selection.signals import Table
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

TURN: Final = 0.5
"""Seconds from one look to the next: a node that shuts down leaves its pods fifteen."""

NOT_ALLOWED_PAUSE: Final = 60.0
"""Seconds after which a right may have been given, or a webhook may have changed its mind."""


class Counters(Protocol):
    """Who counts."""

    def reaped(self, cause: str) -> None: ...

    def reap_failed(self) -> None: ...


ReadJob = Callable[[Sender], JobView | None]
"""Reads the job as it is now; None if there is none to be read. Raises :class:`RequestFailed`."""


class Reaper:
    """``scene``: the latest look, None before the first; another object after each. ``job`` is asked before failed pods
    are deleted. ``told`` hears of each pod that was deleted. ``own``: the daemon's own pod, which is never deleted."""

    def __init__(
        self,
        sender: Sender,
        scene: Callable[[], ClusterView | None],
        table: Table,
        *,
        job: ReadJob,
        own: Key | None,
        told: Callable[[PodNote], None],
        counters: Counters,
        clock: Clock,
        draw: Callable[[], float],
        limits: ReapLimits | None = None,
    ) -> None:
        self._sender = sender
        self._see = scene
        self._table = table
        self._read_job = job
        self._own = own
        self._tell = told
        self._counters = counters
        self._clock = clock
        self._draw = draw
        self._limits = limits or ReapLimits()
        self._reaped = ReapState()
        self._scene: ClusterView | None = None
        self._again_at: float | None = None
        self._backoff = Backoff()
        self._not_before = 0.0
        self._trouble = ""
        self._allowed = False
        self._refusals: dict[str, str] = {}
        self._over = ""
        self._logged: set[str] = set()
        self._aside = Aside("reaper", self.turn, clock=clock, interrupt=sender.interrupt, farewell=sender.close)

    def start(self) -> None:
        self._aside.start()

    def hurry(self) -> None:
        self._aside.hurry()

    def stop(self) -> None:
        self._aside.stop()

    def turn(self) -> float:
        """Look, and delete what is to be deleted; return after how many seconds to look again."""
        now, scene = self._clock.mono(), self._see()
        due = self._again_at is not None and now >= self._again_at
        if scene is None or now < self._not_before or (scene is self._scene and not due):
            return TURN
        self._reaped, chosen, self._again_at = decide_deletions(
            now, self._reaped, scene, self._table, limits=self._limits
        )
        self._scene = scene
        self._logged.intersection_update(self._reaped.since)
        self._refusals = {uid: why for uid, why in self._refusals.items() if uid in self._reaped.since}
        over: bool | None = None
        for deletion in chosen:
            if deletion.cause == SHUTTING_DOWN and self._see() is not scene:
                self._scene = None  # the node may be well by now: others are deleted slowly at times
                return 0.0
            if deletion.cause != SHUTTING_DOWN:
                over = self._is_over(scene) if over is None else over
                if over:
                    break  # none of those that follow is more urgent
            try:
                if deletion.key != self._own:
                    self._delete(deletion)
                self._reaped = deleted(self._clock.mono(), self._reaped, deletion)
            except RequestFailed as error:
                self._counters.reap_failed()
                self._scene = None  # what was not done is to be looked at again
                if _for_all(error):
                    self._rest(deletion, error)
                    return TURN
                self._refuse(deletion, error)
        return TURN

    def _is_over(self, scene: ClusterView) -> bool:
        """Whether the job has finished since it was read for ``scene``, which may be a minute ago. Its failed pods stay
        then, for who wants to know why. Where that cannot be found out, what was known of the job holds."""
        if scene.job is None:
            return False
        if scene.job.uid != self._over or not self._over:
            try:
                job = self._read_job(self._sender)
            except RequestFailed as error:
                return said(error, NOT_FOUND)  # then its pods go with it
            if job is None or not job.finished:
                return False
            self._over = job.uid
            LOG.info("--reap-failed: the job has finished; its failed pods stay")
        return scene.job.uid == self._over

    def _delete(self, deletion: Deletion) -> None:
        """Raises :class:`RequestFailed` if it is neither done nor done with."""
        if deletion.uid not in self._logged:  # before it is done: it is the record of why
            self._logged.add(deletion.uid)
            LOG.warning("reaping pod %s (%s): %s", deletion.key, deletion.cause, deletion.why)
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            # Whatever has taken its name meanwhile is another pod. Its grace is its own: it may have to take its leave.
            "preconditions": {"uid": deletion.uid},
        }
        try:
            self._sender.send("DELETE", path_of("v1", deletion.key.namespace, "pods", deletion.key.name), options)
        except RequestFailed as error:
            if not (said(error, NOT_FOUND) or said(error, CONFLICT)):
                raise
            self._trouble = ""
            LOG.info("pod %s is gone already", deletion.key)
            return
        self._trouble, self._allowed = "", True
        self._counters.reaped(deletion.cause)
        self._tell(PodNote(deletion.uid, deletion.key.name, deletion.why))

    def _refuse(self, deletion: Deletion, error: RequestFailed) -> None:
        """One pod is not deleted for now; that holds up no other."""
        least = max(NOT_ALLOWED_PAUSE if said(error, NOT_ALLOWED) else 0.0, min(error.retry_after or 0.0, 30.0))
        self._reaped = refused(self._clock.mono(), self._reaped, deletion, jitter=self._draw(), least=least)
        if self._refusals.get(deletion.uid) != str(error):
            self._refusals[deletion.uid] = str(error)
            LOG.warning("--reap-failed: pod %s is not deleted for now: %s", deletion.key, error)

    def _rest(self, deletion: Deletion, error: RequestFailed) -> None:
        """Nobody is deleted for now."""
        now, remedy = self._clock.mono(), ""
        if self._allowed and lacks_right(error):
            self._allowed, self._not_before = False, now + NOT_YET
            return
        self._backoff, pause = self._backoff.failed(now, self._draw())
        pause = max(pause, min(error.retry_after or 0.0, 30.0))
        if lacks_right(error):
            remedy, pause = "; docker/manifests/reap.yaml gives the right", NOT_ALLOWED_PAUSE
        else:  # it may be this pod's doing, say a webhook that hangs: others first, the next time
            self._reaped = refused(now, self._reaped, deletion, jitter=0.0)
        self._not_before = now + pause
        if self._trouble != str(error):
            self._trouble = str(error)
            LOG.warning("--reap-failed: %s%s", error, remedy)


def _for_all(error: RequestFailed) -> bool:
    """Whether the same is to be expected for every pod, or tells us not to go on. RBAC knows no single pods here."""
    return error.failure is not Failure.ANSWERED or error.code in (401, 429, 503) or lacks_right(error)
