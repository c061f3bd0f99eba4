"""When the workers of a sleeping job are released and requested."""

from __future__ import annotations

import math

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.workload_kinds import NAMED
from hvd_elastic_ext.launcher.driver.options import JobOptions
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from hvd_elastic_ext.launcher.options.settings import RunSettings, Sources
from hvd_elastic_ext.launcher.sleep.release_policy import (
    DELETE_RETRY_S,
    PUBLISHED_S,
    ReleaseAction,
    ReleaseLimits,
    SleepProgress,
    decide,
    limits_of,
    pause_s,
    restored,
    without_look,
    workers_for,
)
from hvd_elastic_ext.launcher.sleep.replica_requests import Pod, Seen, workload

LIMITS = ReleaseLimits(workload("statefulset/w"), 300.0, 600.0)
MPI = ReleaseLimits(workload("mpijob/j"), 300.0, 600.0)


def seen(replicas: int, *, ready: int = 0, waiting: int = 0) -> Seen:
    there = [Pod(f"w-{each}", f"u-{each}", each < ready, False) for each in range(ready + waiting)]
    return Seen(replicas, tuple(there))


NO_LOOK = {  # now, progress, whether enough hosts are published; the action, and when to ask again
    "let go at once": (100.0, SleepProgress(), False, None),
    "they stay away for a while": (399.9, SleepProgress(since=100.0), False, (ReleaseAction.WAIT, 400.0)),
    "and no longer": (400.0, SleepProgress(since=100.0), False, None),
    "asked for, they have their time": (1099.9, SleepProgress(4, 500.0), False, (ReleaseAction.WAIT, 1100.0)),
    "some may have to be deleted": (101.0, SleepProgress(since=100.0, deletions_done=False), False, None),
    **{
        f"the job is about to wake: {progress}": (1e6, progress, True, (ReleaseAction.WAIT, None))
        for progress in (SleepProgress(), SleepProgress(since=0.0), SleepProgress(4, 0.0), SleepProgress(4, 0.0, False))
    },
}  # fmt: skip
DELETING = SleepProgress(since=100.0, deletions_done=False)
LOOKS = {
    "let go": (100.0, SleepProgress(), seen(4, ready=1), LIMITS, ReleaseAction.RELEASE, None),
    "asked for": (400.0, SleepProgress(since=100.0), seen(0), LIMITS, ReleaseAction.ASK, None),
    "another has asked": (400.0, SleepProgress(since=100.0), seen(3, waiting=3), LIMITS, ReleaseAction.ADOPT, None),
    "not all ready in time": (
        1100.0, SleepProgress(4, 500.0), seen(4, ready=3, waiting=1), LIMITS, ReleaseAction.RELEASE, None,
    ),
    "all ready, they have time to be published": (
        1100.0, SleepProgress(4, 500.0), seen(4, ready=4), LIMITS, ReleaseAction.WAIT, 1100.0 + PUBLISHED_S,
    ),
    "and no longer": (
        1100.0 + PUBLISHED_S, SleepProgress(4, 500.0), seen(4, ready=4), LIMITS, ReleaseAction.RELEASE, None,
    ),
    "those that their operator leaves are deleted": (
        101.0, DELETING, seen(0, ready=2), MPI, ReleaseAction.DELETE, 101.0 + DELETE_RETRY_S,
    ),
    "until none is left": (106.0, DELETING, seen(0), MPI, ReleaseAction.WAIT, 400.0),
    "unless somebody has asked for them": (106.0, DELETING, seen(2, ready=2), MPI, ReleaseAction.WAIT, 400.0),
}  # fmt: skip


@pytest.mark.parametrize(("now", "progress", "enough", "expected"), NO_LOOK.values(), ids=NO_LOOK)
def test_without_a_look_nothing_is_released_before_its_time(
    now: float, progress: SleepProgress, *, enough: bool, expected: tuple[ReleaseAction, float | None] | None
) -> None:
    decided = without_look(now, progress, LIMITS, enough=enough)
    assert (None if decided is None else (decided.act, decided.again_at)) == expected


@pytest.mark.parametrize(("now", "progress", "there", "limits", "act", "again_at"), LOOKS.values(), ids=LOOKS)
def test_what_a_look_finds_decides_the_next_act_and_when(
    now: float, progress: SleepProgress, there: Seen, limits: ReleaseLimits, act: ReleaseAction, again_at: float | None
) -> None:
    decided = decide(now, progress, there, limits)
    assert (decided.act, decided.again_at) == (act, again_at)


@pytest.mark.parametrize(
    ("slots", "known", "guess", "before", "wanted"),
    [
        (8, [4, 4], 1, 5, 2),
        (9, [4, 4], 1, 5, 3),
        (8, [4, 2], 1, 5, 4),  # any of them may come: the smallest number counts
        (8, [4], 1, 1, 2),  # known numbers come before the number of former workers
        (8, [], 4, 5, 2),
        (8, [], 1, 5, 5),  # a guess never requests more than there were
        (8, [], 1, 0, 8),
        (1, [8], 1, 5, 1),
        (4, [1], 2, 0, 4),
    ],
)
def test_as_many_workers_are_asked_for_as_the_job_needs(
    slots: int, known: list[int], guess: int, before: int, wanted: int
) -> None:
    assert workers_for(slots, known, guess=guess, before=before) == wanted


def test_a_job_that_is_awake_has_as_many_workers_as_before() -> None:
    kind = NAMED["statefulset"]
    assert restored(seen(2), 8, 2, kind) == 8
    assert restored(seen(0), 8, 2, kind) == 8
    assert restored(seen(2), None, 2, kind) is None


def test_whoever_chose_another_number_meanwhile_is_not_overruled() -> None:
    kind = NAMED["statefulset"]
    assert restored(seen(3), 8, 2, kind) is None
    assert restored(seen(9), 8, 2, kind) is None


def test_what_an_earlier_launcher_left_is_had_back_whatever_it_asked_for() -> None:
    assert restored(seen(3), 8, None, NAMED["mpijob"]) == 8
    assert restored(seen(9), 8, None, NAMED["mpijob"]) is None


def test_pauses_grow_and_stay_at_the_longest() -> None:
    pauses = [pause_s(failures) for failures in range(1, 20)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (5.0, 300.0)


@pytest.mark.parametrize("number", [0.0, -1.0, math.inf, math.nan])
def test_times_are_numbers_above_0(number: float) -> None:
    with pytest.raises(UsageError, match="--wake-every is"):
        ReleaseLimits(LIMITS.job, number)
    with pytest.raises(UsageError, match="--wake-timeout is"):
        ReleaseLimits(LIMITS.job, 1.0, number)


def test_what_is_let_go_is_told_by_two_options() -> None:
    assert limits_of("none", None, 0.0, 0.0) is None
    assert limits_of("pods", "statefulset/w", 300.0, 600.0) == LIMITS
    assert limits_of("job", "mpijob/j", 300.0, 600.0) == ReleaseLimits(MPI.job, 300.0, 600.0, suspends=True)


@pytest.mark.parametrize(
    ("what", "job", "said"),
    [
        ("pods", None, "--sleep-releases pods: what makes the pods is not known; give --release-job KIND/NAME"),
        ("none", "mpijob/j", "--release-job is for --sleep-releases pods; give both, or none"),
        ("job", "statefulset/w", "--sleep-releases job: statefulset cannot be suspended"),
    ],
)
def test_options_that_do_not_go_together_are_told(what: str, job: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        limits_of(what, job, 300.0, 600.0)


def test_only_jobs_that_sleep_let_anybody_go() -> None:
    with pytest.raises(UsageError, match="--sleep-releases is for jobs that sleep; give --below-min sleep, too"):
        RunSettings(("train",), Sources(hosts=HostSet.of({"a": 1})), JobOptions(WorldLimits()), releases=LIMITS)
