"""One form of a length of time, in every option of every command."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from discover.cli import build_parser
from hvd_elastic_ext import cli
from hvd_elastic_ext.autoscale.policies import parse as policy
from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import takes_time
from hvd_elastic_ext.launcher.cli import run_options
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import parse_checkpoint_every

FORMS = {
    "90": 90, "2.5": 2.5, "1e3": 1000, "0": 0, "500ms": 0.5, "30s": 30, "0.5s": 0.5, "10m": 600, "2h": 7200,
    "1d": 86_400, "1h30m": 5400, "1h0m0.5s": 3600.5, "2h22m": 8520, "1.5h": 5400,
}  # fmt: skip
WRONG = ("soon", "", "-5", "-5s", "5 s", "m", "5sm", "5w", "1h30", "nan", "1e999", "0x5")


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


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every parser of both programs."""
    yield "hvd-discover", build_parser()
    for name in set(cli.COMMANDS) - {"build-horovod"}:
        for command in dict.fromkeys((cli.COMMANDS[name], cli._meant(name, cli.CLUSTER_OPTIONS))):
            yield from _below(name, cli._parser(name, command))


def _below(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, each in action.choices.items():
                yield from _below(f"{name} {below}", each)


def test_every_option_that_takes_a_time_reads_every_form() -> None:
    seen = set()
    for command, parser in parsers():
        timed = [action for action in parser._actions if takes_time(action)]
        assert not timed or durations.FORM in parser.format_help(), command
        for action in timed:
            name = action.option_strings[-1]
            seen.add(f"{command} {name}")
            for text, seconds in FORMS.items():
                if action.dest == "checkpoint_every":
                    found = parse_checkpoint_every(text).seconds if text[-1].isalpha() else seconds
                else:
                    assert callable(action.type), name
                    found = action.type(text)
                assert found in (seconds, math.ceil(seconds)), f"{command} {name} {text}"
            if action.dest != "checkpoint_every":
                many = action.nargs if isinstance(action.nargs, int) else 1
                with pytest.raises(UsageError, match=f"'soon': write a time, such as {action.option_strings[0]} 30s"):
                    parser.parse_args([name, *["soon"] * many])
    assert {
        *("run --settle", "run --sleep-after", "run --max-wait-time", "run --heartbeat-timeout", "run --orphan-grace"),
        *("run --elastic-timeout", "run --blacklist-cooldown-range", "run --checkpoint-every", "run --wake-every"),
        *("run --gloo-timeout-seconds", "submit --max-wait-time", "submit --running-timeout", "wait --timeout"),
        *("hosts block --for", "logs --since", "simulate --settle", "simulate --checkpoint-every"),
        "hvd-discover --settle",
    } <= seen


def test_no_option_of_seconds_has_another_form() -> None:
    for command, parser in parsers():
        for action in parser._actions:
            name = f"{command} {action.option_strings}"
            assert action.metavar not in ("S", "SECONDS"), name
            assert action.type is not float or action.dest in ("cycle_time_ms", "autotune_gaussian_process_noise"), name


def test_files_and_variables_take_the_same_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("settle: 1m\nblacklist-cooldown-range: [30s, 5m]\n")
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "20m")
    environ = {"HVD_ELASTIC_SLEEP_AFTER": "2m", "HVD_ELASTIC_SAMPLE": "500ms"}
    found = run_options.parse(["-np", "1", "--config", str(config), "true"], environ)
    assert (found.settle_s, found.cooldown_s) == (60.0, (30.0, 300.0))
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
    assert run_options.parse(["-np", "1", "--standby-timeout", "inf", "true"], {}).standby_timeout_s == math.inf
