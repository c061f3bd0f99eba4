"""What strangers may send, damaged at random, takes memory and time in proportion and ends in errors that are said."""

from __future__ import annotations

import pytest

from tests.faults.fuzz.hunt import hunt, once
from tests.faults.fuzz.mutations import LONGEST
from tests.faults.fuzz.targets import TARGETS, Target

SEED = 1


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_takes_few_resources_and_ends_only_in_known_errors(name: str) -> None:
    for seed in TARGETS[name].seeds:
        TARGETS[name].read(seed)  # without an error
    count, finding = hunt(name, TARGETS[name], seed=SEED, seconds=0.15)
    assert finding is None, str(finding)
    assert count


@pytest.mark.soak
@pytest.mark.idle
@pytest.mark.timeout(300)
def test_minutes_of_fuzzing_find_nothing() -> None:
    for name, target in TARGETS.items():
        _, finding = hunt(name, target, seed=SEED + 1, seconds=150 / len(TARGETS))
        assert finding is None, str(finding)


def _grows(data: bytes) -> None:
    bytearray(64 << 20 if b"x" in data else 1)


def _fails(data: bytes) -> None:
    raise KeyError(data) if b"x" in data else ValueError


def _says_lines(data: bytes) -> None:
    raise ValueError("a\nb" if b"x" in data else "a")


@pytest.mark.parametrize(
    ("read", "what"),
    [(_grows, "too much memory"), (_fails, "KeyError in test_fuzz.py"), (_says_lines, "an error of several lines")],
)
def test_a_defect_is_found_with_its_number_and_a_short_input(read: object, what: str) -> None:
    target = Target(read, (b"a" * 50 + b"x" + b"b" * 50,), (ValueError,))  # type: ignore[arg-type]
    _, finding = hunt("own", target, seed=SEED, seconds=10)
    assert finding is not None
    assert what in finding.what
    assert len(finding.data) < 30
    again = once("own", target, seed=SEED, number=finding.number)
    assert again is not None
    assert what in again.what
    assert len(again.data) <= LONGEST
