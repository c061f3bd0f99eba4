"""The Python way to jobs: all names are there, and importing them costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hvd_elastic_ext import jobs
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs import sdk
from hvd_elastic_ext.jobs.cluster import changes


def test_every_name_that_is_promised_is_there() -> None:
    assert all(getattr(jobs, name) is not None for name in jobs.__all__)
    assert {*jobs.__all__} <= {*dir(sdk), "Toleration", "PodStatus"}
    with pytest.raises(AttributeError, match="has no attribute 'sumbit'"):
        _ = jobs.sumbit  # type: ignore[attr-defined]


def test_importing_it_loads_no_client() -> None:
    code = "import sys, hvd_elastic_ext.jobs as jobs; jobs.submit, jobs.Job; assert 'kubernetes' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_function_waits_for_the_states_of_the_command_failed_included() -> None:
    assert changes.STATES["failed"] == ("Failed",)
    with pytest.raises(UsageError, match="'done' is not one of finished"):
        sdk.wait("digits", "done")  # type: ignore[arg-type]
