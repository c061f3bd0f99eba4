"""When and how set-up changes .venv."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tooling import setup_tree
from tooling.setup_plan import Action, Found, Options, Stamp, decide, hash_inputs, read_stamp
from tooling.setup_tree import PYTHON, chosen, complete, parser

from tests.support import tensorflow

DEFAULTS = Options(torch_index="", mpi=False, tensorflow=False, python="")
WITH_TENSORFLOW = replace(DEFAULTS, tensorflow=True)
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
        (SOUND, replace(STAMP, options=WITH_TENSORFLOW), Action.UPDATE, "options"),
        (replace(SOUND, stamp=replace(STAMP, options=WITH_TENSORFLOW)), STAMP, Action.AFRESH, "not wanted any more"),
        (SOUND, replace(STAMP, inputs="def"), Action.UPDATE, "has changed"),
    ],
)
def test_each_difference_has_an_action_and_a_reason(found: Found, wanted: Stamp, action: Action, reason: str) -> None:
    decided, why = decide(found, wanted)
    assert decided is action
    assert reason in why


def test_options_that_are_not_given_stay() -> None:
    earlier = Options(torch_index="URL", mpi=True, tensorflow=True, python="/py")
    assert Options().over(earlier) == earlier
    assert Options(torch_index="", mpi=False).over(earlier) == replace(earlier, torch_index="", mpi=False)
    assert Options(tensorflow=False).over(earlier) == replace(earlier, tensorflow=False)
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
    given = [] if flag is None else ["--torch-index", flag]
    assert chosen(parser().parse_args(given), environment).torch_index == index


@pytest.mark.parametrize(
    ("given", "variable", "tensorflow"),
    [
        ("", None, None),
        ("", "", None),
        ("", "tensorflow", True),
        ("--with tensorflow", "", True),
        ("--with tensorflow", "else", True),
        ("--without tensorflow", "tensorflow", False),
    ],
)
def test_tensorflow_comes_from_the_flag_or_else_the_environment(
    given: str, variable: str | None, tensorflow: bool | None
) -> None:
    environment = {} if variable is None else {"WITH": variable}
    assert chosen(parser().parse_args(given.split()), environment).tensorflow is tensorflow


def test_with_something_that_cannot_be_added_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HVD_DIE_WITH_PARENT", raising=False)
    monkeypatch.setattr(setup_tree, "raise_on_sigterm", lambda: None)
    monkeypatch.setenv("WITH", "keras")
    assert setup_tree.main([]) == 1
    assert capsys.readouterr().err == (
        "setup: WITH is 'keras'; give WITH=tensorflow, or nothing to leave it as it was.\n"
    )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--with-tensorflow", "--with tensorflow"),
        ("--without-tensorflow", "--without tensorflow"),
        ("--pyhton", "--python"),
    ],
)
def test_an_option_with_another_spelling_gets_the_nearest(
    given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args([given])
    assert f"{given} is not an option; did you mean {meant}?\n" in capsys.readouterr().err


def test_with_and_without_tensorflow_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["--with", "tensorflow", "--without", "tensorflow"])
    assert "not allowed with argument --with" in capsys.readouterr().err


def test_keras_2_is_installed_without_the_package_that_it_asks_for() -> None:
    assert len(setup_tree._requirements(DEFAULTS)) == 1
    usual, keras = setup_tree._requirements(WITH_TENSORFLOW)
    assert any(each.startswith("tensorflow") for each in usual)
    assert not any(each.startswith("tf-keras") for each in usual)
    assert keras[-2:] == ["--no-deps", setup_tree.TF_KERAS]


def test_a_stamp_from_before_there_was_tensorflow_is_read_and_renewed() -> None:
    found = json.loads(STAMP.to_text())
    del found["options"]["tensorflow"]
    earlier = read_stamp(json.dumps(found))
    assert earlier is not None
    wanted = replace(STAMP, options=Options().over(earlier.options))
    assert wanted == STAMP
    assert decide(replace(SOUND, stamp=earlier), wanted)[0] is Action.UPDATE


def test_tests_learn_from_the_stamp_whether_tensorflow_should_be_there(tmp_path: Path) -> None:
    for options, without in ((DEFAULTS, True), (WITH_TENSORFLOW, False)):
        (tmp_path / setup_tree.STAMP.name).write_text(replace(STAMP, options=options).to_text())
        assert tensorflow.left_out(tmp_path) is without


def test_a_complete_set_up_says_where_the_command_is_and_what_is_next() -> None:
    assert complete().startswith(f"Set-up is complete: the command is {PYTHON.parent}/hvd-elastic. Next: ")
