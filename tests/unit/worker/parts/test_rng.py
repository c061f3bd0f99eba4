"""Random generators: rolled back exactly, and different for everyone who joins."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.worker.parts import rng
from tests.support.processes import run_process


@pytest.fixture(autouse=True)
def _generators_as_before() -> Iterator[None]:
    kept = rng.capture()
    yield
    rng.restore(kept)


def draw() -> list[Any]:
    """Something from each generator, a normal number too: those are drawn in pairs and one is kept."""
    return [
        random.random(), random.gauss(0, 1), torch.rand(3).tolist(), torch.randn(1).item(),
        numpy.random.rand(2).tolist(), float(numpy.random.standard_normal()),
    ]  # fmt: skip


def committed(states: dict[str, Any]) -> dict[str, Any]:
    """As they come out of a commit."""
    text = write(states, [])
    back = read(text, lambda index, kind: pytest.fail("a generator's state is not a tensor"))
    assert isinstance(back, dict)
    return back


@pytest.mark.parametrize("drawn_before", range(4))
def test_after_a_roll_back_every_generator_draws_the_same_again(drawn_before: int) -> None:
    for _ in range(drawn_before):
        draw()
    states = committed(rng.capture())
    first = draw()
    draw()
    for _ in range(2):
        rng.restore(states)
        assert draw() == first


def test_capturing_generators_draws_nothing_from_them() -> None:
    states = rng.capture()
    expected = draw()
    rng.restore(states)
    rng.capture()
    assert draw() == expected


def test_a_captured_state_is_not_the_live_one() -> None:
    states = rng.capture()
    before = write(states, [])
    draw()
    assert write(states, []) == before


WHO = st.tuples(st.integers(1, 2**62), st.integers(1, 1000), st.integers(0, 100))


@given(WHO, WHO)
def test_newcomers_draw_differently_by_job_world_and_rank_and_alike_if_all_is_repeated(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    seen = []
    for lineage, generation, rank in (one, other, one):
        rng.seed_newcomer(lineage, generation, rank)
        seen.append(draw())
    assert seen[0] == seen[2]
    if one != other:
        assert all(a != b for a, b in zip(seen[0], seen[1], strict=True))


def test_neighbours_draw_different_things() -> None:
    seen = []
    for generation in range(1, 5):
        for rank in range(8):
            rng.seed_newcomer(7, generation, rank)
            seen.append(draw())
    assert all(len({repr(each[index]) for each in seen}) == len(seen) for index in range(len(seen[0])))


def test_a_process_that_has_not_loaded_numpy_yet_gets_its_state_all_the_same() -> None:
    """A restart rolls back before the script has come to the point where it uses NumPy."""
    program = """
import importlib, sys
import numpy
import hvd_elastic_ext.worker.parts.rng as rng

states, expected = rng.capture(), numpy.random.rand()
del sys.modules["numpy"]  # as if it had not been imported; a second import would break it
importlib.import_module = lambda name: sys.modules.setdefault(name, numpy)
rng.restore(states)
assert numpy.random.rand() == expected
"""
    with run_process([sys.executable, "-c", program]) as process:
        assert process.wait(timeout=60) == 0, process.output
