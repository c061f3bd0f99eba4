"""What is asked for one by one: the job above the pods, and nodes that nobody has seen."""

import pytest

from discover.pods.operators import JobView
from discover.watch.lookups import REFRESH, Lookups
from hvd_elastic_ext.io.kube.errors import ApiError, Reason

AWAY = ApiError(Reason.UNREACHABLE, "connection refused")


def refused(code: int) -> ApiError:
    return ApiError.of_status({}, code=code)


class Rig:
    """Answers come from the lists, the last one for ever."""

    def __init__(self, clock, *, jobs=(), nodes=None) -> None:
        self.clock = clock
        self.jobs, self.nodes = list(jobs), nodes or {}
        self.asked: list[str] = []
        self.changes = 0
        job = self._job if jobs else None
        self.lookups = Lookups(job, self._node, clock=clock, draw=lambda: 0.0)
        self.lookups._changed = self._change

    def _change(self) -> None:
        self.changes += 1

    def _answer(self, answers: list):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _job(self):
        self.asked.append("job")
        return self._answer(self.jobs)

    def _node(self, name: str) -> bool:
        self.asked.append(name)
        return self._answer(self.nodes[name])

    def turn(self) -> float | None:
        pause = self.lookups.turn()
        self.clock.advance(pause or 0.0)
        return pause


def test_where_there_is_no_job_nothing_is_waited_for(manual_clock):
    rig = Rig(manual_clock)
    assert rig.lookups.settled
    assert rig.turn() is None


def test_the_job_is_read_and_read_again_every_minute(manual_clock):
    first, second = JobView(uid="1"), JobView(uid="1", slots_per_worker=4)
    rig = Rig(manual_clock, jobs=[first, first, second])
    assert not rig.lookups.settled
    assert [rig.turn() for _ in range(3)] == [REFRESH] * 3
    assert rig.lookups.job == second
    assert rig.changes == 2  # the same again is not a change


@pytest.mark.parametrize("code", [403, 404])
def test_a_job_that_may_not_be_read_or_is_not_there_is_done_without(manual_clock, code, caplog):
    rig = Rig(manual_clock, jobs=[refused(code), refused(code), JobView(uid="1")])
    assert rig.turn() == REFRESH
    assert rig.lookups.settled
    assert rig.changes == 1
    rig.turn()
    assert len(caplog.records) == 1  # said once
    rig.turn()
    assert rig.lookups.job == JobView(uid="1")


def test_a_server_that_is_away_is_asked_again_later_and_later(manual_clock):
    rig = Rig(manual_clock, jobs=[AWAY, AWAY, AWAY, JobView(uid="1")])
    pauses = [rig.turn() for _ in range(4)]
    assert pauses == pytest.approx([0.8, 1.6, 3.2, REFRESH])
    assert rig.lookups.settled


def test_what_was_known_of_the_job_goes_on_to_hold(manual_clock):
    rig = Rig(manual_clock, jobs=[JobView(uid="1"), refused(404), AWAY])
    for _ in range(3):
        rig.turn()
    assert rig.lookups.job == JobView(uid="1")
    assert rig.lookups.settled


def test_missing_nodes_are_asked_for_and_only_they(manual_clock):
    rig = Rig(manual_clock, nodes={"x": [False], "y": [True]})
    rig.lookups.set_missing(["y", "x"])
    rig.turn()
    assert rig.lookups.exists == {"x": False, "y": True}
    assert rig.asked == ["x", "y"]
    rig.lookups.set_missing(["x"])
    rig.turn()
    assert rig.lookups.exists == {"x": False}
    assert rig.asked == ["x", "y"]
    assert rig.changes == 2


def test_a_node_that_exists_is_asked_for_again_and_one_that_does_not_is_not(manual_clock):
    rig = Rig(manual_clock, nodes={"x": [False], "y": [True, True, False]})
    rig.lookups.set_missing(["x", "y"])
    for _ in range(3):
        rig.turn()
    assert rig.asked == ["x", "y", "y", "y"]
    assert rig.lookups.exists == {"x": False, "y": False}
    assert rig.lookups.turn() is None


def test_a_node_of_which_there_is_no_answer_is_not_said_to_be_gone(manual_clock, caplog):
    rig = Rig(manual_clock, nodes={"x": [refused(403), AWAY, False]})
    rig.lookups.set_missing(["x"])
    assert rig.turn() == 0.8
    assert rig.lookups.exists == {}
    assert rig.turn() == 1.6
    rig.turn()
    assert rig.lookups.exists == {"x": False}
    assert len(caplog.records) == 2
