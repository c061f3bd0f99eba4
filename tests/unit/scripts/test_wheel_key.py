"""The key of a cached wheel: it changes with each fact the wheel depends on, and with nothing else."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tooling import wheel_key
from tooling.errors import ToolingError
from tooling.wheel_key import WheelFacts, build_flags, processor_features

OTHER = {
    "horovod": "0.28.2",
    "patch": 99,
    "torch": "2.13.0+cu130",
    "python_tag": "cpython-312-x86_64-linux-gnu",
    "compiler": "g++ 13",
    "libc": "glibc 2.40",
    "machine": "x86_64 avx",
    "mpi": None,
    "cuda": None,
    "flags": (),
}


@pytest.mark.parametrize("name", [field.name for field in fields(WheelFacts)])
def test_the_key_changes_with_every_single_fact(facts: WheelFacts, name: str) -> None:
    assert replace(facts, **{name: OTHER[name]}).key() != facts.key()


def test_equal_facts_make_equal_keys(facts: WheelFacts) -> None:
    assert replace(facts).key() == facts.key()
    assert len(facts.key()) == 16


@given(st.lists(st.text(), min_size=2, max_size=2), st.lists(st.text(), min_size=2, max_size=2))
def test_text_never_moves_from_one_fact_into_its_neighbour(left: list[str], right: list[str]) -> None:
    def key(pair: list[str]) -> str:
        return WheelFacts("0", 1, pair[0], pair[1], "c", "l", "m", None, None, ()).key()

    assert (key(left) == key(right)) == (left == right)


def test_only_variables_the_build_is_shown_count_as_flags() -> None:
    assert build_flags({"CXXFLAGS": "-O3", "EDITOR": "vi", "CFLAGS": "", "MAKEFLAGS": "-j9"}) == (("CXXFLAGS", "-O3"),)


def test_the_order_of_the_environment_does_not_change_the_flags() -> None:
    assert build_flags({"CC": "a", "CXX": "b"}) == build_flags({"CXX": "b", "CC": "a"})


def test_processor_features_are_those_horovod_compiles_for() -> None:
    assert processor_features("model : 1\nflags\t\t: fpu fma sse avx avx2\n") == "avx fma"
    assert processor_features("Features : asimd\n") == ""


def test_a_compiler_that_does_not_run_is_an_error_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler-here")
    with pytest.raises(ToolingError, match="no-such-compiler-here --version"):
        wheel_key.facts_of_this_machine(torch="2.13.0", python_tag="x", mpi=False, cuda=False)
