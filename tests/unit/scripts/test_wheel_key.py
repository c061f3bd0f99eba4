"""The key of a cached wheel changes with each fact that the wheel depends on, and with nothing else."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tooling import wheel_key
from tooling.errors import ToolingError
from tooling.wheel_key import WheelFacts, build_flags, processor_features


@pytest.mark.parametrize("name", [field.name for field in fields(WheelFacts)])
def test_the_key_changes_with_every_fact(facts: WheelFacts, name: str) -> None:
    assert replace(facts, **{name: None}).key() != facts.key() == replace(facts).key()
    assert len(facts.key()) == 16


@given(st.lists(st.text(), min_size=2, max_size=2), st.lists(st.text(), min_size=2, max_size=2))
def test_text_never_moves_from_one_fact_into_the_next(left: list[str], right: list[str]) -> None:
    def key(pair: list[str]) -> str:
        return WheelFacts("0", 1, pair[0], pair[1], "p", "c", "l", "m", None, None, ()).key()

    assert (key(left) == key(right)) == (left == right)


def test_flags_are_the_variables_that_the_build_sees_in_one_order() -> None:
    seen = {"CXXFLAGS": "-O3", "EDITOR": "vi", "CFLAGS": "", "MAKEFLAGS": "-j9", "CC": "a"}
    assert build_flags(seen) == build_flags(dict(reversed(seen.items()))) == (("CC", "a"), ("CXXFLAGS", "-O3"))


def test_processor_features_are_those_that_horovod_compiles_for() -> None:
    assert processor_features("model : 1\nflags\t\t: fpu fma sse avx avx2\n") == "avx fma"
    assert processor_features("Features : asimd\n") == ""


def test_a_compiler_that_does_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler-here")
    with pytest.raises(ToolingError, match="no-such-compiler-here --version"):
        wheel_key.facts_of_this_machine(torch="2.13.0", tensorflow=None, python_tag="x", mpi=False, cuda=False)


def test_each_tensorflow_has_a_key_of_its_own(facts: WheelFacts) -> None:
    keys = {replace(facts, tensorflow=version).key() for version in ("2.15.1", "2.21.0", None)}
    assert len(keys) == 3
