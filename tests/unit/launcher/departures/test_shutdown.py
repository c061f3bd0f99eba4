"""The end of a failed job names the hosts on which its processes may still run."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from hvd_elastic_ext.core.errors import Interrupted, JobFailed
from hvd_elastic_ext.launcher.driver.events import End
from tests.unit.launcher.scenarios import play

NAMED = {
    "one that cannot be reached at the end": (
        "train a b heartbeat_timeout_s=3; run 2; cut b; dead b; end; over <120",
        "told to; not told to end, and may train on: b (no route to host)",
    ),
    "one that was cut off before, and has not returned": (
        "train a b heartbeat_timeout_s=3; run 2; cut b; until a; hosts a; run 3; end; over <120",
        "told to; not told to end, and may train on: b (nothing was heard from it for 3.* s)",
    ),
    "an interrupted job, too": (
        "train a b heartbeat_timeout_s=3; run 2; cut b; dead b; interrupt; over <120",
        "stopped by SIGTERM; not told to end, and may train on: b (no route to host)",
    ),
    "not one that has returned": (
        "train a b heartbeat_timeout_s=3; run 2; cut b; until a; run 1; back b; run 20; end; over <120",
        "told to",
    ),
    "not one that had notice": (
        "train a b heartbeat_timeout_s=3; run 2; departs b spot / a; cut b; dead b; until a; run 9; end; over <120",
        "told to",
    ),
    "not one that was told without a connection": (
        "train a b heartbeat_timeout_s=3; run 2; cut b; end; over <120",
        "told to",
    ),
}


@pytest.mark.parametrize(("text", "why"), NAMED.values(), ids=NAMED)
def test_a_failed_job_names_hosts_that_were_not_told_to_end(text: str, why: str) -> None:
    outcome = play(text).driver.outcome
    assert fnmatch(str(outcome), why), outcome
    assert isinstance(outcome, Interrupted) == why.startswith("stopped by")


def test_after_a_traceback_they_have_a_line_of_their_own() -> None:
    cluster = play("train a b heartbeat_timeout_s=3; run 2; cut b; dead b")
    cluster.driver.tell(End(JobFailed("the script fails: ValueError: x\nTraceback\nValueError: x")))
    cluster.until(lambda: cluster.driver.over, within=120.0)
    *_, before, last = str(cluster.driver.outcome).splitlines()
    assert (before, last) == ("ValueError: x", "not told to end, and may train on: b (no route to host)")
