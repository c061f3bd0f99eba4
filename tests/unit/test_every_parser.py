"""What holds for every option of every command of both programs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import pytest

from discover.cli import build_parser
from hvd_elastic_ext import cli
from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import takes_time
from hvd_elastic_ext.launcher.checkpoints.schedule import parse_checkpoint_every
from tests.unit.core.test_durations import FORMS


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


def test_every_help_begins_as_a_sentence_of_its_own_command() -> None:
    for command, parser in parsers():
        about = parser.description or ""
        assert about[:1].upper() == about[:1], command
        assert "``" not in parser.format_help(), command
    for name, command in cli.COMMANDS.items():
        if name != "build-horovod":
            assert cli._parser(name, command).prog == f"hvd-elastic {name}"


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


def test_no_option_can_be_abbreviated_and_the_whole_one_is_named() -> None:
    for command, parser in parsers():
        options = parser._option_string_actions.items()
        names = [name for name, option in options if name.startswith("--") and option.help != argparse.SUPPRESS]
        for name in names:
            for word in (name[:end] for end in range(4, len(name))):
                if word not in parser._option_string_actions:
                    with pytest.raises(UsageError, match=f"^{word} is not an option; did you mean -") as error:
                        parser.parse_args([word, "1"])
                    whole = [other for other in names if other.startswith(word)]
                    assert len(whole) > 1 or whole[0] in str(error.value), f"{command} {word}: {error.value}"
