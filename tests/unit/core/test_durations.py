"""The one form of a length of time, in options, files and variables."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Final

import pytest

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.checkpoints.schedule import parse_checkpoint_every
from hvd_elastic_ext.launcher.cli import run_options
from hvd_elastic_ext.launcher.scaling.policies import parse as policy

FORMS: Final = {
    "90": 90, "2.5": 2.5, "1e3": 1000, "0": 0, "500ms": 0.5, "30s": 30, "0.5s": 0.5, "10m": 600, "2h": 7200,
    "1d": 86_400, "1h30m": 5400, "1h0m0.5s": 3600.5, "2h22m": 8520, "1.5h": 5400, "1e+06s": 1e6,
    "1d2h3m4s5ms": 93784.005,
}  # fmt: skip
WRONG = (
    "soon",
    "",
    "-5",
    "-5s",
    "5 s",
    "m",
    "5sm",
    "5w",
    "1h30",
    "nan",
    "1e999",
    "0x5",
    "1m1h",
    "1h1h",
    "1s1m",
    "1us1µs",
)


@pytest.mark.parametrize(("text", "seconds"), FORMS.items())
def test_a_time_is_plain_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert durations.parse(text) == durations.time(text) == seconds
    assert durations.whole_seconds(text) == math.ceil(seconds)


@pytest.mark.parametrize("text", WRONG)
def test_anything_else_is_no_time(text: str) -> None:
    assert durations.parse(text) is None
    for read in (durations.time, durations.whole_seconds):
        with pytest.raises(ValueError, match=f"^{text}$"):
            read(text)


def test_files_and_variables_take_the_same_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("settle: 1m\nblacklist-cooldown-range: [30s, 5m]\n")
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "20m")
    environ = {"HVD_ELASTIC_SLEEP_AFTER": "2m", "HVD_ELASTIC_SAMPLE": "500ms"}
    found = run_options.parse(["-np", "1", "--config", str(config), "true"], environ).options
    assert (found.limits.settle_s, found.cooldown_s) == (60.0, (30.0, 300.0))
    assert (found.sleep_after_s, found.elastic_timeout_s) == (120.0, 1200.0)
    assert policy("efficiency:up=2m,retry=90").limits["up_s"] == 120.0
    with pytest.raises(UsageError, match="up is 'soon'; write a time"):
        policy("efficiency:up=soon")


def test_a_plain_number_of_checkpoints_is_a_number_of_commits() -> None:
    assert parse_checkpoint_every("20").steps == 20
    assert parse_checkpoint_every("20s").seconds == 20
    assert parse_checkpoint_every("1h30m").seconds == 5400
    for wrong in ("0s", "1e3", "2.5"):
        with pytest.raises(UsageError, match="write auto, a number of steps"):
            parse_checkpoint_every(wrong)


def test_without_end_is_a_time_where_it_was() -> None:
    assert run_options.parse(["-np", "1", "--standby-timeout", "inf", "true"], {}).options.standby_timeout_s == math.inf


def test_an_option_takes_no_time_of_more_than_a_thousand_days() -> None:
    assert durations.time("1000d") == durations.whole_seconds("1000d") == 86_400_000
    for read in (durations.time, durations.whole_seconds):
        with pytest.raises(argparse.ArgumentTypeError, match=r"^'99999999999h' is longer than 1000 days$"):
            read("99999999999h")
    with pytest.raises(UsageError, match=r"^--settle '1001d' is longer than 1000 days\n"):
        run_options.parse(["-np", "1", "--settle", "1001d", "true"], {})


def test_the_form_that_help_shows_has_all_units() -> None:
    assert all(unit in durations.FORM for unit in ("ms", "30s", "10m", "2h", "1d"))


def test_a_time_of_zero_is_told_to_be_above_0() -> None:
    with pytest.raises(UsageError, match=r"^--elastic-timeout is 0; write a time above 0, such as 30s, 10m or 1h30m$"):
        run_options.parse(["-np", "1", "--elastic-timeout", "0", "true"], {})


def test_a_wrong_value_is_told_by_its_variable_or_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^environment variable HVD_ELASTIC_SETTLE is 'soon'"):
        run_options.parse(["-np", "1", "true"], {"HVD_ELASTIC_SETTLE": "soon"})
    with pytest.raises(
        UsageError, match=r"--standby-timeout is 0.*comes from environment variable HVD_ELASTIC_STANDBY"
    ):
        run_options.parse(["-np", "1", "true"], {"HVD_ELASTIC_STANDBY_TIMEOUT": "0"})
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "0")
    with pytest.raises(UsageError, match=r"^HOROVOD_ELASTIC_TIMEOUT is '0'; write a time above 0"):
        run_options.parse(["-np", "1", "true"], {})
