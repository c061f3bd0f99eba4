"""The checker with constructed lines: correct ones pass, and each kind of violation is found."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.journal import Record
from tests.faults.chaos import lines
from tests.faults.chaos.checker import OVERLAP_S, TOLD_S, Seen, places_of_spares, violations
from tests.faults.chaos.lines import Process, parse

A, B = 10, 20
"""Agents of hosts a and b."""


class Story:
    """Lines of a job, made one after the other. Processes have the pids 1, 2, …, agents 10 and 20."""

    def __init__(self) -> None:
        self._lines: dict[int, list[str]] = {}
        self._watched = [f"0 agent {A} host a\n", f"0 agent {B} host b\n"]
        self._resized: list[Record] = []
        self._sealed: list[Record] = []
        self._places: dict[int, str] = {}

    def begin(self, pid: int, host: str, agent: int) -> None:
        self._lines[pid] = [f"0 boot {pid} host {host} agent {agent}\n"]

    def world(self, at: float, generation: int, *pids: int, step: int = 0, lost: int | None = 0) -> None:
        """These processes enter a world, with ranks in this order."""
        fields = {"steps_lost": lost}
        self._resized.append(Record(at, at, generation, "resized", fields))
        for rank, pid in enumerate(pids):
            self._places[pid] = f"rank {rank} size {len(pids)} host x generation {generation}"
            self.add(at + 0.1, pid, "enter", step)

    def add(self, at: float, pid: int, kind: str, step: int, *, place: str = "", weight: float | None = None) -> None:
        where = f"{place or self._places[pid]} weight {step if weight is None else weight}"
        self._lines[pid].append(f"{at} {kind} {step} {where}\n")

    def train(self, at: float, first: int, last: int, *pids: int) -> None:
        """Steps ``first`` to ``last``, one each 0.1 s."""
        for number in range(first, last + 1):
            for pid in pids:
                self.add(at + 0.1 * (number - first), pid, "step", number)

    def see(self, at: float, kind: str, agent: int, **fields: object) -> None:
        words = " ".join(f"{name} {value}" for name, value in {"host": "ab"[agent // 20], **fields}.items())
        self._watched.append(f"{at} {kind} {agent} {words}\n")

    def held(self, at: float, agent: int, step: int, commit: str = "") -> None:
        self.see(at, "held", agent, commit=commit or f"7.0.1.{step}", step=step)

    def no_launcher(self, at: float) -> None:
        self._watched.append(f"{at} no_launcher 1\n")

    def seal(self, at: float, step: int) -> None:
        self._sealed.append(Record(at, at, 0, "sealed", {"step": step}))

    def done(self, at: float, pid: int, step: int) -> None:
        self._lines[pid].append(f"{at} done {step}\n")

    def violations(self, *, goal: int | None = None) -> list[str]:
        found = [lines.process(written) for written in self._lines.values()]
        processes: tuple[Process, ...] = tuple(each for each in found if each is not None)
        watched = tuple(parse(self._watched))
        return violations(Seen(processes, watched, tuple(self._resized), tuple(self._sealed), goal))


def two_that_train() -> Story:
    """Hosts a and b train in world 1 up to step 40, and both hold that commit."""
    story = Story()
    story.begin(1, "a", A)
    story.begin(2, "b", B)
    story.world(1.0, 1, 1, 2)
    story.train(1.2, 1, 40, 1, 2)
    for agent in (A, B):
        story.held(2.0, agent, 20)
        story.held(5.2, agent, 40)
    return story


def go_on(story: Story, at: float, step: int, **fields: Any) -> None:
    """Host b continues alone in world 2 from ``step``, with another process."""
    story.begin(3, "b", B)
    story.world(at, 2, 3, step=step, **fields)
    story.train(at + 0.2, step + 1, step + 20, 3)
    story.done(at + 4.0, 3, step + 20)


def only(found: list[str], *words: str) -> None:
    """Check that there is one violation, and that it contains these words."""
    assert len(found) == 1, found
    assert all(word in found[0] for word in words), found


def test_a_job_that_continues_from_its_last_commit_to_its_end_is_correct() -> None:
    story = two_that_train()
    story.see(6.0, "killed", A)
    go_on(story, 9.0, 40)
    assert story.violations(goal=60) == []


def test_a_weight_that_is_not_the_number_of_steps_is_found() -> None:
    story = two_that_train()
    story.add(5.3, 1, "step", 41, weight=40.0)
    only(story.violations(), "process 1 on a", "weight")


def test_ranks_that_start_a_world_with_different_steps_are_found() -> None:
    story = two_that_train()
    story.begin(4, "a", A)
    place = "rank 1 size 2 host x generation 2"
    story.add(9.2, 2, "enter", 40, place="rank 0 size 2 host x generation 2")
    story.begin(4, "a", A)
    story.add(9.2, 4, "enter", 41, place=place)
    assert any("world 2: ranks begin with steps [40, 41]" in said for said in story.violations())


def test_one_rank_for_two_processes_and_two_ranks_for_one_are_found() -> None:
    story = two_that_train()
    story.begin(4, "a", A)
    story.add(1.1, 4, "enter", 0, place="rank 0 size 2 host x generation 1")
    story.add(1.2, 2, "step", 1, place="rank 0 size 2 host x generation 1")
    found = story.violations()
    assert any("rank 0 is of [1, 2, 4]" in said for said in found), found
    assert any("2 has ranks [0, 1]" in said for said in found), found


def test_a_world_of_two_sizes_is_found() -> None:
    story = two_that_train()
    story.begin(4, "a", A)
    story.add(1.1, 4, "enter", 0, place="rank 2 size 3 host x generation 1")
    only(story.violations(), "world 1", "sizes [2, 3]")


def test_a_step_that_is_left_out_is_found() -> None:
    story = two_that_train()
    story.train(6.0, 42, 42, 1)
    only(story.violations(), "process 1 on a", "step 42", "step 40")


def test_training_in_a_world_that_is_over_is_found_unless_it_is_short() -> None:
    story = two_that_train()
    go_on(story, 9.0, 40)
    story.train(9.0 + OVERLAP_S, 41, 41, 1)
    assert story.violations() == []
    story.train(9.2 + OVERLAP_S, 42, 42, 1)
    only(story.violations(), "process 1 on a trains on", "step 42")


def test_a_world_behind_a_commit_that_a_living_agent_holds_is_found() -> None:
    story = two_that_train()
    go_on(story, 9.0, 20, lost=20)
    found = story.violations()
    assert [word in found[0] for word in ("world 2", "step 20", f"agent {A} of a held 40")] == [True] * 3
    assert len(found) == 2  # b held it, too


def test_a_job_that_starts_from_the_beginning_without_a_report_is_found() -> None:
    story = two_that_train()
    story.see(6.0, "killed", B)
    go_on(story, 9.0, 0, lost=None)
    found = story.violations()
    assert any(f"agent {A} of a held 40" in said for said in found), found
    assert any("40 steps behind a commit; the journal says steps_lost None" in said for said in found), found


def test_commits_that_only_killed_agents_held_may_be_lost_if_the_loss_is_reported() -> None:
    story = two_that_train()
    for agent in (A, B):
        story.see(5.3 + TOLD_S, "killed", agent)
    go_on(story, 12.0, 0, lost=41)
    assert story.violations() == []
    silent = two_that_train()
    for agent in (A, B):
        silent.see(5.3 + TOLD_S, "killed", agent)
    go_on(silent, 12.0, 0, lost=None)
    only(silent.violations(), "40 steps behind a commit", "steps_lost None")
    less = two_that_train()
    for agent in (A, B):
        less.see(5.3 + TOLD_S, "killed", agent)
    go_on(less, 12.0, 0, lost=39)
    only(less.violations(), "40 steps behind a commit", "steps_lost 39")


def test_a_commit_that_no_launcher_knew_of_need_not_be_counted() -> None:
    story = two_that_train()
    for agent in (A, B):
        story.see(5.1 + TOLD_S, "killed", agent)
    go_on(story, 12.0, 20, lost=20)
    assert story.violations() == []


def test_a_commit_made_without_a_launcher_need_not_be_counted() -> None:
    """Its agent ends before the next launcher is ready, any time after the commit."""
    story = two_that_train()
    story.no_launcher(4.0)
    for agent in (A, B):
        story.see(4.0 + 3 * TOLD_S, "killed", agent)
    go_on(story, 30.0, 20, lost=0)
    assert story.violations() == []


@pytest.mark.parametrize(("ends", "wrong"), [((4.0,), 1), ((4.0, 14.0), 0), ((4.0, 24.0), 1)])
def test_a_launcher_that_is_killed_while_it_comes_up_has_heard_nothing(ends: tuple[float, ...], wrong: int) -> None:
    story = two_that_train()
    for at in ends:
        story.no_launcher(at)
    for agent in (A, B):
        story.see(28.0, "killed", agent)
    go_on(story, 30.0, 20, lost=0)
    assert len(story.violations()) == wrong


def test_a_later_commit_is_no_loss_of_earlier_worlds() -> None:
    story = two_that_train()
    story.see(6.0, "killed", A)
    go_on(story, 9.0, 40)
    story.held(11.2, B, 60, commit="7.0.2.60")
    story.see(20.0, "over", B)
    assert story.violations() == []


def test_a_checkpoint_may_not_be_lost_with_all_agents() -> None:
    story = two_that_train()
    for agent in (A, B):
        story.see(6.0, "killed", agent)
    story.seal(4.0, 30)
    go_on(story, 12.0, 20, lost=20)
    only(story.violations(), "world 2", "30 is durable")


def test_an_agent_killed_after_the_world_has_formed_does_not_excuse_a_loss() -> None:
    story = two_that_train()
    story.see(6.0, "killed", B)
    go_on(story, 9.0, 20, lost=20)
    story.see(9.05, "killed", A)
    only(story.violations(), f"agent {A} of a held 40")


def test_an_agent_that_ends_normally_with_the_only_copy_of_a_commit_is_found() -> None:
    story = two_that_train()
    story.held(5.5, A, 42)
    story.see(7.0, "over", A)
    go_on(story, 9.0, 40, lost=2)
    only(story.violations(), f"agent {A} of a held 42", "and ended at 7.000")


def test_an_agent_that_has_sent_its_commit_may_end() -> None:
    story = two_that_train()
    story.held(5.5, A, 42)
    story.held(6.9, B, 42)
    story.see(7.0, "over", A)
    story.see(8.0, "killed", B)
    go_on(story, 9.0, 40, lost=2)
    assert story.violations() == []


def test_an_agent_that_ends_after_the_receiver_of_its_commit_is_found() -> None:
    story = two_that_train()
    story.see(6.0, "killed", B)
    story.see(7.0, "over", A)
    go_on(story, 9.0, 20, lost=20)
    only(story.violations(), f"agent {A} of a held 40", "ended at 7.000")


def test_a_host_with_notice_must_be_waited_for_until_its_deadline() -> None:
    for at, wrong in ((9.0, 1), (11.0, 0)):
        story = two_that_train()
        story.see(6.0, "killed", B)
        story.see(10.0, "excused", A, until="inf")
        go_on(story, at, 20, lost=20)
        assert len(story.violations()) == wrong


def test_a_host_whose_notice_was_withdrawn_counts_again_unless_it_was_told_to_leave() -> None:
    story = two_that_train()
    story.see(6.0, "killed", B)
    story.see(7.0, "excused", A, until=8.0)
    go_on(story, 9.0, 20, lost=20)
    assert len(story.violations()) == 1
    story.see(8.5, "over", A)
    assert story.violations() == []


def test_of_a_stopped_agent_only_the_commits_that_it_reported_are_known() -> None:
    for since, wrong in ((5.2 + TOLD_S - 0.1, 0), (5.2 + TOLD_S + 0.1, 1)):
        story = two_that_train()
        story.see(6.0, "killed", B)
        story.see(since, "still", A, until=13.0)
        go_on(story, 9.0, 20, lost=20)
        assert len(story.violations()) == wrong


def test_a_commit_that_a_world_has_passed_is_void_when_its_holder_returns() -> None:
    story = two_that_train()
    story.see(6.0, "killed", B)
    story.see(7.0, "excused", A, until=9.5)
    go_on(story, 9.0, 20, lost=20)
    story.begin(4, "b", B)
    story.world(14.0, 3, 4, step=30)
    assert story.violations() == []


def test_without_a_launcher_the_journal_gets_no_lines() -> None:
    story = two_that_train()
    for agent in (A, B):
        story.see(5.3 + TOLD_S, "killed", agent)
    story.begin(3, "b", B)
    story.add(12.0, 3, "enter", 0, place="rank 0 size 1 host x generation 2")
    only(story.violations(), "40 steps behind a commit; the journal says nothing of it")
    story.no_launcher(12.5)
    assert story.violations() == []


def test_a_rank_that_does_not_reach_the_end_is_found() -> None:
    story = two_that_train()
    story.done(6.0, 1, 40)
    only(story.violations(goal=40), "process 2 on b", "did not come to its end")


def test_training_that_ends_at_a_wrong_step_is_found() -> None:
    story = two_that_train()
    for pid in (1, 2):
        story.done(6.0, pid, 40)
    only(story.violations(goal=42), "training ended after steps [40], not 42")


def test_a_torn_last_line_and_a_process_that_has_not_started_are_skipped() -> None:
    whole = lines.process(["0 boot 1 host a agent 10\n", "1.0 commit 2\n", "1.1 step 3 rank 0 si"])
    assert whole is not None
    assert [line.kind for line in whole.lines] == ["commit"]
    assert lines.process([]) is None
    assert lines.process(["0 boot 1 host"]) is None


def test_a_spare_beside_the_rank_that_it_replaces_is_found() -> None:
    def found(cause: str, **hosts: int) -> list[str]:
        resized = Record(1.0, 1.0, 2, "resized", {"cause": cause, "size": sum(hosts.values()), "hosts": hosts})
        return list(places_of_spares(Seen((), (), (resized,)), slots=2, most=3))

    assert found("worker failed", a=2, b=1) == []
    only(found("worker failed", a=2, b=2), "world 2", "4 members, more than 3")
    assert found("hosts changed", a=2, b=2) == []
    only(found("worker failed", a=3), "world 2", "3 on a")
