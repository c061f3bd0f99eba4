"""The frame every test runs in; see docs/testing.md and tests/support."""

pytest_plugins = ["tests.support.frame", "tests.support.nethosts"]
