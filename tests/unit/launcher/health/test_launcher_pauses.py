"""The lines about pauses of the launcher itself."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hvd_elastic_ext.launcher.health.launcher_pauses import LauncherPause, launcher_paused, report_pause
from hvd_elastic_ext.launcher.health.strikes import Unexplained
from tests.unit.launcher.scenarios import play


def lines(pauses: list[tuple[float, float]], *, heartbeat_timeout_s: float = 10.0) -> list[tuple[float, str]]:
    """Return the times and texts of the lines about pauses, which are given by end and length."""
    said: list[tuple[float, str]] = []
    short: tuple[LauncherPause, ...] = ()
    for now, seconds in pauses:
        logged_at = said[-1][0] if said else None
        line, short = report_pause(now, seconds, short, heartbeat_timeout_s=heartbeat_timeout_s, logged_at=logged_at)
        said += [(now, line)] if line else []
    return said


@pytest.mark.parametrize(("seconds", "timeout_s"), [(4.0, 10.0), (5.0, 60.0), (1.3, 3.0)])
def test_a_pause_that_is_long_beside_the_heartbeat_timeout_is_said_at_once(seconds: float, timeout_s: float) -> None:
    ((at, line),) = lines([(100.0, seconds)], heartbeat_timeout_s=timeout_s)
    assert at == 100.0
    assert line == f"the launcher itself was paused for {seconds:.1f} s; no host is blamed for that"


def test_one_second_now_and_then_is_not_said() -> None:
    assert lines([(100.0, 1.1), (140.0, 1.3), (220.0, 2.0), (300.0, 1.1)]) == []


def test_forty_short_pauses_in_six_minutes_are_a_line_a_minute_with_their_number() -> None:
    said = lines([(9.0 * number, 1.1 + (number % 5) / 10) for number in range(1, 41)])
    assert len(said) <= 6
    assert all(later - earlier >= 60.0 for (earlier, _), (later, _) in pairwise(said))
    assert said[1][1].startswith("the launcher itself was paused 7 times in 60 s, for 1.5 s at most: this machine has")


def test_a_long_pause_is_said_though_others_were_just_said() -> None:
    said = lines([(1.0, 1.1), (2.0, 1.1), (3.0, 1.1), (20.0, 9.0)])
    assert [at for at, _ in said] == [3.0, 20.0]


def test_what_came_after_a_host_s_last_message_stays_after_it() -> None:
    job = play("train a b; run 20").driver.job
    agent = job.roster.agents["a"]
    agent.last_message_at = job.now - 9
    agent.inherited_at = agent.unlisted_at = job.now - 6
    launcher_paused(job, 4.0)
    assert agent.last_message_at == job.now - 5
    assert agent.inherited_at == agent.unlisted_at == job.now - 2


def test_an_end_that_may_be_a_victim_s_waits_longer_for_the_one_that_explains_it() -> None:
    job = play("train a b; run 2").driver.job
    worker = next(iter(job.roster.workers.values()))
    job.faults.unexplained.append(Unexplained(worker, "aborted", 134, (), 1, until=job.now + 5))
    launcher_paused(job, 4.0)
    assert [each.until for each in job.faults.unexplained] == [job.now + 9]
