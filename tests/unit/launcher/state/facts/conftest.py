from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    """Lines that people read are kept."""
    caplog.set_level(logging.INFO)
