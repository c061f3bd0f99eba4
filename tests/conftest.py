"""The frame every test runs in; see docs/testing.md and tests/support."""

import os
import shutil
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.light_torch import FOLDER, sitecustomize

assert "torch" not in sys.modules
assert sitecustomize  # this process imports less of torch, too: each worker collects all tests

if shutil.which("python") is None:  # Debian has python3 only, and commands in tests begin with python
    os.environ["PATH"] += os.pathsep + os.path.dirname(sys.executable)

pytest_plugins = ["tests.support.pytest_plugin", "tests.support.nethosts"]

# Machines differ in speed and are shared: no test may fail for being slow, but for the timeout of pytest itself.
settings.register_profile(
    "tests",
    deadline=None,
    max_examples=int(os.environ.get("HVD_TEST_EXAMPLES", "60")),
    # CI asks whether a change is right, and is to answer the same twice; runs by hand search on.
    derandomize=os.environ.get("HVD_TEST_STRICT") == "1",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def light_torch() -> None:
    """Processes that tests start import less of torch; those with an environment of their own import all of it."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH")]))


@pytest.fixture(autouse=True)
def no_world_is_left_behind() -> Iterator[None]:
    """States say in which world and call this process is; the next test's process is in none."""
    yield
    if (world := sys.modules.get("hvd_elastic_ext.worker.comms.current_world")) is not None:
        world.use(None)
    if (calls := sys.modules.get("hvd_elastic_ext.worker.calls.calls")) is not None:
        calls.forget()
