"""Each kind of part around something live: see cases.py."""

from __future__ import annotations

from collections.abc import Iterator

import horovod.torch as hvd
import pytest

from tests.contract.parts.cases import CASES, Case


@pytest.fixture(scope="package")
def alone() -> Iterator[None]:
    """Horovod as a world of one, in this process."""
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A part whose live value has been through some training."""
    if request.param.startswith("Horovod"):
        monkeypatch.setenv("HOROVOD_ELASTIC", "1")  # in a world of one Horovod's hooks are there only then
        request.getfixturevalue("alone")
    made = CASES[request.param](1)
    made.change()
    return made
