"""The values of ``--checkpoint-every`` and ``--commit-every``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.checkpoints.schedule import (
    AUTO,
    ON_NOTICE,
    Cadence,
    parse_checkpoint_every,
    parse_commit_every,
)

Parser = Callable[[str], Cadence]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("auto", AUTO),
        (" auto ", AUTO),
        ("notice", ON_NOTICE),
        ("100", Cadence(steps=100)),
        ("90s", Cadence(seconds=90.0)),
        ("0.5s", Cadence(seconds=0.5)),
        ("5m", Cadence(seconds=300.0)),
        ("1e6s", Cadence(seconds=1e6)),
    ],
)
def test_every_way_to_say_how_often_checkpoints_are_sealed(text: str, meant: Cadence) -> None:
    assert parse_checkpoint_every(text) == meant
    assert parse_checkpoint_every(str(meant)) == meant
    assert meant.auto == (meant is AUTO)


@pytest.mark.parametrize(("text", "meant"), [("auto", AUTO), ("1", Cadence(steps=1)), ("25", Cadence(steps=25))])
def test_every_way_to_say_how_often_commits_are_done(text: str, meant: Cadence) -> None:
    assert parse_commit_every(text) == meant


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "0 s", "-5", "+5", "1e3", "nan", "infs", "1.5", "٣", "9" * 13, "2.5 steps", "Auto", "5x"],
)
@pytest.mark.parametrize("parse", [parse_checkpoint_every, parse_commit_every])
def test_what_is_no_value_is_refused_with_all_ways_to_write_one(parse: Parser, text: str) -> None:
    with pytest.raises(UsageError, match="write auto"):
        parse(text)


@pytest.mark.parametrize("text", ["90s", "notice", "5m"])
def test_commits_are_counted_not_timed(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_commit_every(text)
    assert str(refused.value) == f"--commit-every {text!r}: write auto, or a number of steps (10)"


def test_an_error_names_where_the_value_was_given() -> None:
    with pytest.raises(UsageError, match=r"^HVD_ELASTIC_COMMIT_EVERY 'x': "):
        parse_commit_every("x", where="HVD_ELASTIC_COMMIT_EVERY")


@given(st.text("0123456789.+-e sautonice\n٣"))
@pytest.mark.parametrize("parse", [parse_checkpoint_every, parse_commit_every])
def test_any_text_is_a_value_or_one_line(parse: Parser, text: str) -> None:
    try:
        parse(text)
    except UsageError as refused:
        assert "\n" not in str(refused)  # noqa: PT017
