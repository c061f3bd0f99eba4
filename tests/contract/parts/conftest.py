"""Each kind of part around something live: see cases.py."""

from __future__ import annotations

from collections.abc import Iterator

import horovod.torch as hvd
import pytest

from tests.contract.parts import tensorflow_cases
from tests.contract.parts.cases import CASES, Case
from tests.support.tensorflow import needs_tensorflow


@pytest.fixture(scope="package")
def alone() -> Iterator[None]:
    """Horovod as a world of one, in this process."""
    hvd.init()
    yield
    hvd.shutdown()


OF_TENSORFLOW = [pytest.param(name, marks=needs_tensorflow) for name in tensorflow_cases.CASES]
ALL = CASES | tensorflow_cases.CASES


@pytest.fixture(params=[*CASES, *OF_TENSORFLOW])
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A part whose live value has been through some training."""
    if request.param.startswith("Horovod"):
        monkeypatch.setenv("HOROVOD_ELASTIC", "1")  # in a world of one Horovod's hooks are there only then
        request.getfixturevalue("alone")
    if request.param in tensorflow_cases.CASES:
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    made = ALL[request.param](1)
    made.change()
    return made
