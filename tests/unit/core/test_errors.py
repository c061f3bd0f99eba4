"""One tree of errors: what to do about each, and the exit code it means."""

import signal

import pytest

from hvd_elastic_ext.core import errors
from hvd_elastic_ext.core.errors import Asleep, BadHosts, Interrupted, UsageError


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
