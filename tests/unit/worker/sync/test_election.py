"""Who sends, and what: the same on every rank, and never an old commit over a newer one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.worker.sync.exchange import Candidate, Election, Send, elect

BASE = Candidate(
    lineage=5, incarnation=1, generation=3, number=10, step=40, loose=64, data=640, layout=50, tree=20,
    layout_digest=77, loose_digest=88, firm_digest=0, proposal=111, entered=3,
)  # fmt: skip


def said(**changes: Any) -> Candidate:
    return BASE._replace(**changes)


FRESH = said(lineage=0, generation=0, number=0, step=0, entered=0)

TABLE: dict[str, tuple[list[Candidate], tuple[int, Send, int, int]]] = {
    "a first sync: rank 0, with its lineage": ([FRESH._replace(proposal=1), FRESH], (0, Send.ALL, 1, 1)),
    "a first sync sends though all look alike": ([FRESH, FRESH, FRESH], (0, Send.ALL, 111, 1)),
    "a first sync of one": ([FRESH], (0, Send.ALL, 111, 1)),
    "a first sync where another rank has committed more": ([FRESH, FRESH._replace(number=9)], (0, Send.ALL, 111, 1)),
    "a first sync where another rank has a checkpoint from before": (
        [FRESH, FRESH._replace(imported=1), FRESH._replace(imported=2, proposal=9), FRESH._replace(imported=2)],
        (2, Send.ALL, 9, 1),
    ),
    "a newcomer with a checkpoint from before": ([FRESH._replace(imported=2), BASE], (1, Send.ALL, 5, 4)),
    "all hold the same": ([BASE, BASE], (0, Send.NOTHING, 5, 4)),
    "alone": ([BASE], (0, Send.NOTHING, 5, 4)),
    "one newcomer at rank 0": ([FRESH, BASE, BASE], (1, Send.ALL, 5, 4)),
    "a newcomer with more commits of its own": ([FRESH._replace(number=99, incarnation=9), BASE], (1, Send.ALL, 5, 4)),
    "one rank is a commit ahead": ([BASE, said(number=11), BASE], (1, Send.ALL, 5, 4)),
    "equal numbers after unequal steps: the later step": ([BASE, said(step=41), BASE], (1, Send.ALL, 5, 4)),
    "more commits beat a later step": ([said(step=99), said(number=11)], (1, Send.ALL, 5, 4)),
    "a later world beats more commits": ([said(number=99), said(generation=4, entered=4)], (1, Send.ALL, 5, 5)),
    "a later launcher beats a later world": ([said(generation=9), said(incarnation=2)], (1, Send.ALL, 5, 4)),
    "two jobs' commits: the newer one": ([said(lineage=9), said(number=11)], (1, Send.ALL, 5, 4)),
    "two jobs' commits of one age: one of them": ([said(lineage=9), BASE], (0, Send.ALL, 9, 4)),
    "the same commit, other values": ([BASE, said(loose_digest=1)], (0, Send.LOOSE, 5, 4)),
    "the same commit, a longer tree": ([BASE, said(loose_digest=1, tree=30)], (0, Send.LOOSE, 5, 4)),
    "the same commit, weights changed by hand on one rank": ([BASE, said(firm_digest=7)], (0, Send.ALL, 5, 4)),
    "the same commit, the same change by hand": ([said(firm_digest=7)] * 2, (0, Send.NOTHING, 5, 4)),
    "the same commit, other tensors": ([BASE, said(layout_digest=1)], (0, Send.ALL, 5, 4)),
    "the same commit, more bytes": ([BASE, said(data=704)], (0, Send.ALL, 5, 4)),
    "the same commit, more of them loose": ([BASE, said(loose=128)], (0, Send.ALL, 5, 4)),
    "who was in a later world counts it": ([BASE, said(entered=12)], (0, Send.NOTHING, 5, 13)),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_the_root_of_a_sync_is_the_one_of_this_table(case: str) -> None:
    candidates, (root, send, lineage, generation) = TABLE[case]
    decided = elect(candidates)
    assert decided == Election(root, send, lineage, generation, decided.reason)
    assert decided.reason
    assert "\n" not in decided.reason


SMALL = st.integers(0, 3)
DIGESTS = st.integers(0, 2**56)
CANDIDATES = st.builds(
    Candidate,
    lineage=st.sampled_from([0, 0, 5, 5, 2**62]), incarnation=SMALL, generation=SMALL, number=SMALL,
    step=SMALL, loose=st.sampled_from([0, 64]), data=st.sampled_from([64, 128]), layout=st.just(50), tree=SMALL,
    layout_digest=st.integers(0, 1), loose_digest=st.sampled_from([0, 2**63 - 1]),
    firm_digest=st.integers(0, 1),
    proposal=st.integers(1, 2**62), entered=st.integers(3, 6), imported=st.just(0),
    call=SMALL, in_call=SMALL, past=SMALL, left=DIGESTS, generators=DIGESTS, others=DIGESTS,
    collectives=DIGESTS, known=DIGESTS, begun=DIGESTS, past_bytes=SMALL, replay=st.integers(0, 1),
)  # fmt: skip
WORLDS = st.lists(CANDIDATES, min_size=1, max_size=6) | CANDIDATES.flatmap(
    lambda one: st.lists(st.just(one) | st.builds(lambda digest: one._replace(loose_digest=digest), SMALL), min_size=1)
)


def age(candidate: Candidate) -> tuple[int, int, int, int]:
    return candidate.incarnation, candidate.generation, candidate.number, candidate.step


@given(WORLDS)
def test_the_root_holds_a_newest_commit_and_one_of_a_job_that_synced_if_there_is_any(world: list[Candidate]) -> None:
    decided = elect(world)
    root = world[decided.root]
    synced = [candidate for candidate in world if candidate.lineage]
    if synced:
        assert root.lineage
        assert decided.lineage == root.lineage
        assert age(root) == max(map(age, synced))
        assert decided.root == world.index(next(c for c in world if (c.lineage, age(c)) == (root.lineage, age(root))))
    else:
        assert (decided.root, decided.send, decided.lineage) == (0, Send.ALL, world[0].proposal)


@given(WORLDS)
def test_nothing_is_sent_only_if_all_said_the_same_and_only_values_only_if_all_hold_the_same(
    world: list[Candidate],
) -> None:
    decided, root = elect(world), world[elect(world).root]
    identities = {(candidate.identity, candidate.step) for candidate in world}
    shapes = {(c.loose, c.data, c.layout, c.layout_digest, c.firm_digest) for c in world}
    if decided.send is not Send.ALL:
        assert root.lineage
        assert len(identities) == len(shapes) == 1
    if decided.send is Send.NOTHING:
        assert {c.loose_digest for c in world} == {root.loose_digest}
    if len(identities) == len(shapes) == 1 and root.lineage:
        assert decided.send is not Send.ALL


@given(WORLDS)
def test_every_rank_decides_alike_from_the_table_that_was_summed_up(world: list[Candidate]) -> None:
    tables = [
        [candidate if mine == rank else [0] * len(candidate) for mine, candidate in enumerate(world)]
        for rank in range(len(world))
    ]
    summed = [[sum(numbers) for numbers in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]
    assert all(-(2**63) <= number < 2**63 for numbers in summed for number in numbers)
    assert elect([Candidate(*numbers) for numbers in summed]) == elect(world)


@given(WORLDS, st.integers(0, 5), st.integers(0, 3))
def test_generations_grow_whoever_leaves_and_whoever_joins(world: list[Candidate], losses: int, joins: int) -> None:
    """A chain of worlds: each survivor says the generation it was in, newcomers say 0."""
    last = 0
    for _ in range(4):
        decided = elect(world)
        assert decided.generation > last
        last = decided.generation
        root = world[decided.root]
        world = [root._replace(lineage=decided.lineage, entered=last) for _ in world]
        world = world[min(losses, len(world) - 1) :] + [FRESH._replace(entered=0)] * joins


@given(WORLDS)
def test_after_a_sync_all_agree_and_the_next_one_sends_nothing(world: list[Candidate]) -> None:
    decided = elect(world)
    root = world[decided.root]
    after = [root._replace(lineage=decided.lineage, entered=decided.generation, proposal=9) for _ in world]
    again = elect(after)
    assert (again.send, again.lineage) == (Send.NOTHING, decided.lineage)


def test_a_receiver_gets_the_whole_record_of_the_commit_but_for_what_is_the_senders_own() -> None:
    assert BASE.record == Record(Identity(5, 1, 3, 10), 40, loose=64, data=640, layout=50, tree=20, local=0)
