"""When and how set-up changes .venv."""

from argparse import Namespace
from dataclasses import replace

import pytest
from tooling.setup_plan import Action, Found, Options, Stamp, decide, hash_inputs, read_stamp
from tooling.setup_tree import PYTHON, chosen, complete

DEFAULTS = Options(torch_index="", mpi=False, python="")
STAMP = Stamp(root="/tree", inputs="abc", options=DEFAULTS)
SOUND = Found(environment=True, unfinished=False, stamp=STAMP)


@pytest.mark.parametrize(
    ("found", "wanted", "action", "reason"),
    [
        (SOUND, STAMP, Action.NOTHING, "in place"),
        (Found(environment=True, unfinished=True, stamp=None), STAMP, Action.AFRESH, "interrupted"),
        (replace(SOUND, environment=False), STAMP, Action.AFRESH, "no working .venv"),
        (replace(SOUND, unfinished=True), STAMP, Action.AFRESH, "interrupted"),
        (replace(SOUND, stamp=None), STAMP, Action.UPDATE, "did not finish"),
        (SOUND, replace(STAMP, root="/elsewhere"), Action.AFRESH, "moved here from /tree"),
        (SOUND, replace(STAMP, options=replace(DEFAULTS, python="/py")), Action.AFRESH, "/py"),
        (SOUND, replace(STAMP, options=replace(DEFAULTS, mpi=True)), Action.UPDATE, "options"),
        (SOUND, replace(STAMP, options=replace(DEFAULTS, torch_index="u")), Action.UPDATE, "options"),
        (SOUND, replace(STAMP, inputs="def"), Action.UPDATE, "has changed"),
    ],
)
def test_each_difference_has_an_action_and_a_reason(found: Found, wanted: Stamp, action: Action, reason: str) -> None:
    decided, why = decide(found, wanted)
    assert decided is action
    assert reason in why


def test_options_that_are_not_given_stay() -> None:
    earlier = Options(torch_index="URL", mpi=True, python="/py")
    assert Options().over(earlier) == earlier
    assert Options(torch_index="", mpi=False).over(earlier) == Options(torch_index="", mpi=False, python="/py")
    assert Options().over(Options()) == DEFAULTS


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1}', STAMP.to_text().replace('"format": 1', '"format": 0')]
)
def test_only_a_stamp_of_ours_is_read(text: str) -> None:
    assert read_stamp(text) is None
    assert read_stamp(STAMP.to_text()) == STAMP


def test_the_hash_of_inputs_depends_on_names_and_contents() -> None:
    hashes = [hash_inputs(files) for files in ({"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {"a": b"1", "b": b""}, {})]
    assert len(set(hashes)) == len(hashes)
    assert hash_inputs({"a": b"1", "b": b"2"}) == hash_inputs({"b": b"2", "a": b"1"})


@pytest.mark.parametrize(
    ("flag", "variable", "index"),
    [
        (None, None, None),
        (None, "", None),
        (None, "V", "V"),
        ("F", "V", "F"),
        ("default", "V", ""),
        (None, "default", ""),
    ],
)
def test_torch_index_comes_from_the_flag_or_else_the_environment(
    flag: str | None, variable: str | None, index: str | None
) -> None:
    environment = {} if variable is None else {"TORCH_INDEX": variable}
    assert chosen(Namespace(torch_index=flag, with_mpi=None, python=None), environment).torch_index == index


def test_a_complete_set_up_says_where_the_command_is_and_what_is_next() -> None:
    assert complete().startswith(f"Set-up is complete: the command is {PYTHON.parent}/hvd-elastic. Next: ")
