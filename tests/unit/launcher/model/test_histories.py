"""In any order of events in a cluster, no commit is lost while an agent holds it, and training continues.

Histories are random. A failing one is printed as a script that can be pasted into ``test_found.py``. ``make soak``
plays many more.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from hvd_elastic_ext.launcher.custody import custody
from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.health import ends, strikes
from hvd_elastic_ext.launcher.membership import calls, prologue, spares
from hvd_elastic_ext.launcher.membership import prologue as prologue_planner
from hvd_elastic_ext.launcher.membership.calls import Calls
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from tests.unit.launcher.model.history import History, drawn, failing, script
from tests.unit.launcher.model.play import Failure, Play, play, quiet
from tests.unit.launcher.model.search import FIRST, by_seeds
from tests.unit.launcher.model.short import Cluster
from tests.unit.launcher.model.test_found import FOUND


def test_every_promise_holds_in_100_histories() -> None:
    by_seeds(FIRST, 100)


def test_no_victim_is_blamed_and_no_failure_comes_again_for_ever_in_50_histories() -> None:
    by_seeds(FIRST, 50, draw=failing)


def test_a_driver_that_takes_victims_for_failed_processes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "is_victim", lambda *args, **more: False)
    failures = (play(failing(random.Random(seed).randrange)) for seed in range(20))
    assert any(failure is not None and failure.promise == "no victim is blamed" for failure in failures)


def test_a_driver_that_lets_failures_come_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strikes, "is_counted", lambda cause, code: False)
    failures = (play(failing(random.Random(seed).randrange)) for seed in range(30, 80))  # the third of these shows it
    assert any(failure is not None and failure.promise == "failures that come again end" for failure in failures)


def test_a_driver_that_asks_nobody_whether_a_world_may_form_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle can fail: without custody, it finds a world that begins behind an available commit."""
    questions = [question for question in plan.MAY_A_WORLD_FORM if question.why_not is not custody.why_not]
    monkeypatch.setattr(plan, "MAY_A_WORLD_FORM", questions)
    monkeypatch.setattr(custody, "may_form", lambda job: (True, None))
    failures = (play(drawn(random.Random(seed).randrange)) for seed in range(500))
    assert any(failure is not None and failure.promise == "custody" for failure in failures)


@pytest.mark.parametrize("verb", ["most", "spares", "devices"])
def test_histories_call_spares_in(verb: str) -> None:
    """Else they would show nothing about them."""
    assert any(_called_in(history) for history in _with(verb, range(100)))


def _called_in(history: History) -> bool:
    cluster = Cluster()
    with quiet():
        Play(cluster, history).whole()
    lines = map(json.loads, cluster.journal.getvalue().splitlines())
    return any(line["event"] == "resized" and line.get("spares") for line in lines)


@pytest.mark.parametrize("verb", ["most", "spares", "devices"])
def test_a_driver_that_lets_a_spare_train_beside_the_rank_that_it_replaces_is_found_out(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if verb == "most":
        monkeypatch.setattr(WorldLimits, "size", lambda limits, available, *, begun: available)
    elif verb == "devices":  # it takes any spare for any slot, as on hosts without devices
        offered = spares.offered
        monkeypatch.setattr(spares, "offered", lambda host: offered(host._replace(devices=False)))
    else:
        monkeypatch.setattr(spares, "offered", lambda host: tuple(sorted({*host.usable, *host.taken})))
    failures = _played(verb, range(200))
    assert any(failure is not None and failure.promise == "a spare takes a place" for failure in failures)


def _with(verb: str, seeds: range) -> Iterator[History]:
    """The histories of these seeds in which ``verb`` happens."""
    for history in (drawn(random.Random(seed).randrange) for seed in seeds):
        if any(event.verb == verb for event in history.events):
            yield history


def _played(verb: str, seeds: range) -> Iterator[Failure | None]:
    """Play the histories of these seeds in which ``verb`` happens."""
    return map(play, _with(verb, seeds))


def test_a_driver_that_lets_processes_of_any_call_join_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "decide", lambda *args, **more: calls.Gate(1))
    assert any(failure is not None and failure.promise == "one call" for failure in _played("calls", range(500)))


def test_a_driver_that_calls_processes_in_init_while_others_are_in_their_loop_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prologue_planner, "decide", lambda others: prologue.Meeting.READY)
    assert any(failure is not None and failure.promise == "one call" for failure in _played("prologue", range(500)))


def test_a_driver_that_sends_a_commit_before_the_results_of_earlier_calls_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Calls, "go_first", lambda *args: False)
    seeds = range(380, 1000)  # few histories show it; seed 386 does
    assert any(failure is not None and failure.promise == "custody" for failure in _played("calls", seeds))


@pytest.mark.parametrize("name", [name for name in FOUND if "killed" in name and "is heard before others" in name])
def test_a_driver_that_does_not_wait_for_the_end_of_whom_it_killed_is_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random histories rarely contain this case. With these histories, the oracle must find it."""
    monkeypatch.setattr(custody, "ENDS_S", 0.0)
    failure = play(script(FOUND[name]))
    assert failure is not None
    assert failure.promise == "custody"
