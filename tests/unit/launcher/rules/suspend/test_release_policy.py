"""When a sleeping job's workers are let go and asked for."""

from __future__ import annotations

import math

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.options.settings import RunSettings, Sources
from hvd_elastic_ext.launcher.rules.suspend.release_policy import (
    DELETE_RETRY_S,
    PUBLISHED_S,
    Act,
    Limits,
    SleepProgress,
    decide,
    limits_of,
    pause_s,
    restored,
    without_look,
    workers_for,
)
from hvd_elastic_ext.launcher.rules.suspend.workloads import KINDS, Pod, Seen, workload

LIMITS = Limits(workload("statefulset/w"), 300.0, 600.0)
MPI = Limits(workload("mpijob/j"), 300.0, 600.0)


def seen(replicas: int, *, ready: int = 0, waiting: int = 0) -> Seen:
    there = [Pod(f"w-{each}", f"u-{each}", each < ready, False) for each in range(ready + waiting)]
    return Seen(replicas, tuple(there))


def test_workers_are_let_go_once_the_job_sleeps() -> None:
    assert without_look(100.0, SleepProgress(), LIMITS, enough=False) is None
    assert decide(100.0, SleepProgress(), seen(4, ready=1), LIMITS).act is Act.RELEASE


def test_then_they_stay_away_for_a_while() -> None:
    rest = without_look(399.9, SleepProgress(since=100.0), LIMITS, enough=False)
    assert rest is not None
    assert (rest.act, rest.again_at) == (Act.WAIT, 400.0)


def test_and_are_asked_for_when_that_has_passed() -> None:
    assert without_look(400.0, SleepProgress(since=100.0), LIMITS, enough=False) is None
    assert decide(400.0, SleepProgress(since=100.0), seen(0), LIMITS).act is Act.ASK


def test_who_asks_for_workers_by_hand_gets_them_and_the_same_time() -> None:
    assert decide(400.0, SleepProgress(since=100.0), seen(3, waiting=3), LIMITS).act is Act.ADOPT


def test_they_have_their_time_to_be_ready() -> None:
    rest = without_look(1099.9, SleepProgress(4, 500.0), LIMITS, enough=False)
    assert rest is not None
    assert (rest.act, rest.again_at) == (Act.WAIT, 1100.0)


def test_those_that_are_not_all_ready_by_then_are_let_go_again() -> None:
    decided = decide(1100.0, SleepProgress(4, 500.0), seen(4, ready=3, waiting=1), LIMITS)
    assert decided.act is Act.RELEASE
    assert decided.reason == "3 of 4 workers are ready 600 s after they were asked for"


def test_those_that_are_all_ready_have_time_to_be_published() -> None:
    progress, there = SleepProgress(4, 500.0), seen(4, ready=4)
    decided = decide(1100.0, progress, there, LIMITS)
    assert (decided.act, decided.again_at) == (Act.WAIT, 1100.0 + PUBLISHED_S)
    assert decide(1100.0 + PUBLISHED_S, progress, there, LIMITS).act is Act.RELEASE


@pytest.mark.parametrize(
    "progress",
    [SleepProgress(), SleepProgress(since=0.0), SleepProgress(4, 0.0), SleepProgress(since=0.0, deletions_done=False)],
)
def test_nobody_is_let_go_or_asked_for_while_the_job_is_about_to_wake(progress: SleepProgress) -> None:
    rest = without_look(1e6, progress, LIMITS, enough=True)
    assert rest is not None
    assert (rest.act, rest.again_at) == (Act.WAIT, None)


def test_workers_that_their_operator_leaves_are_deleted_until_none_is_left() -> None:
    progress = SleepProgress(since=100.0, deletions_done=False)
    assert without_look(101.0, progress, MPI, enough=False) is None
    decided = decide(101.0, progress, seen(0, ready=2), MPI)
    assert (decided.act, decided.again_at) == (Act.DELETE, 101.0 + DELETE_RETRY_S)
    assert decide(106.0, progress, seen(0), MPI).act is Act.WAIT
    # Somebody has asked for workers: they are not ours to delete.
    assert decide(106.0, progress, seen(2, ready=2), MPI).act is Act.WAIT


@pytest.mark.parametrize(
    ("slots", "known", "guess", "before", "wanted"),
    [
        (8, [4, 4], 1, 5, 2),
        (9, [4, 4], 1, 5, 3),
        (8, [4, 2], 1, 5, 4),  # any of them may come: the smallest counts
        (8, [4], 1, 1, 2),  # what is known counts more than what there was
        (8, [], 4, 5, 2),
        (8, [], 1, 5, 5),  # a guess never asks for more than there were
        (8, [], 1, 0, 8),
        (1, [8], 1, 5, 1),
    ],
)
def test_as_many_workers_are_asked_for_as_the_job_needs(
    slots: int, known: list[int], guess: int, before: int, wanted: int
) -> None:
    assert workers_for(slots, known, guess=guess, before=before) == wanted


def test_a_job_that_is_awake_has_as_many_workers_as_before() -> None:
    kind = KINDS["statefulset"]
    assert restored(seen(2), 8, 2, kind) == 8
    assert restored(seen(0), 8, 2, kind) == 8
    assert restored(seen(2), None, 2, kind) is None


def test_whoever_chose_another_number_meanwhile_is_not_overruled() -> None:
    kind = KINDS["statefulset"]
    assert restored(seen(3), 8, 2, kind) is None
    assert restored(seen(9), 8, 2, kind) is None


def test_what_an_earlier_launcher_left_is_had_back_whatever_it_asked_for() -> None:
    assert restored(seen(3), 8, None, KINDS["mpijob"]) == 8
    assert restored(seen(9), 8, None, KINDS["mpijob"]) is None


def test_pauses_grow_and_stay_at_the_longest() -> None:
    pauses = [pause_s(failures) for failures in range(1, 20)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (5.0, 300.0)


@pytest.mark.parametrize("number", [0.0, -1.0, math.inf, math.nan])
def test_times_are_numbers_above_0(number: float) -> None:
    with pytest.raises(UsageError, match="--wake-every is"):
        Limits(LIMITS.job, number)
    with pytest.raises(UsageError, match="--wake-timeout is"):
        Limits(LIMITS.job, 1.0, number)


def test_only_what_can_be_suspended_is() -> None:
    assert Limits(MPI.job, suspends=True).suspends
    with pytest.raises(UsageError, match="statefulset cannot be suspended; use pods"):
        Limits(LIMITS.job, suspends=True)


def test_what_is_let_go_is_told_by_two_options() -> None:
    assert limits_of("none", None, 0.0, 0.0) is None
    assert limits_of("pods", "statefulset/w", 300.0, 600.0) == LIMITS
    assert limits_of("job", "mpijob/j", 300.0, 600.0) == Limits(MPI.job, 300.0, 600.0, suspends=True)


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
        RunSettings(("train",), Sources(hosts=HostSet.of({"a": 1})), 1, 1, releases=LIMITS)
