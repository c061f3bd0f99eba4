from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    """Capture log lines from level INFO on."""
    caplog.set_level(logging.INFO)
