"""The frame every test runs in; see docs/testing.md and tests/support."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.frame", "tests.support.nethosts"]

# Machines differ in speed and are shared: no test may fail for being slow, but for the timeout of pytest itself.
settings.register_profile(
    "tests",
    deadline=None,
    max_examples=int(os.environ.get("HVD_TEST_EXAMPLES", "60")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")
