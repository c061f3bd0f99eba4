"""One tree of errors: what to do about each, and the exit code it means."""

import signal

import pytest

from hvd_elastic_ext.core import errors
from hvd_elastic_ext.core.errors import Asleep, BadHosts, Interrupted, SourceUnavailable, UsageError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (BadHosts("f", 1, "x"), 2),
        (errors.JobFailed("x"), 1),
        (errors.BadPublication("x"), 1),
        (Interrupted(signal.SIGINT, "x"), 130),
        (Interrupted(signal.SIGTERM, "x"), 143),
        (Asleep("x"), 75),
    ],
)
def test_exit_codes_are_those_of_the_contract(error, code):
    assert error.exit_code == code


def test_a_source_that_is_away_is_named_and_the_known_hosts_are_kept():
    error = SourceUnavailable("/hosts", "no such file")
    assert str(error) == "/hosts: no such file; keeping the hosts known so far"
    assert (error.where, error.why) == ("/hosts", "no such file")


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (("f", 3, "why"), 0, "f:3: why"),
        (("f", None, "why"), 0, "f: why"),
        (("f", 3, "why"), 1, "f:3: why (and 1 more bad line)"),
        (("f", 3, "why"), 2, "f:3: why (and 2 more bad lines)"),
    ],
)
def test_a_bad_host_list_is_placed_and_the_other_bad_lines_counted(arguments, more, message):
    assert str(BadHosts(*arguments, more=more)) == message
