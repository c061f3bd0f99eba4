"""The public States of TensorFlow, in a process of their own: a process uses one framework's Horovod."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tensorflow import needs_tensorflow

pytestmark = [needs_tensorflow, pytest.mark.timeout(150)]


def in_python(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_states_of_keras_and_of_variables_keep_their_promises_in_a_world_of_one() -> None:
    script = Path(__file__).with_name("tensorflow_states.py")
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.worker.tensorflow_states"],
        cwd=script.parents[3], capture_output=True, text=True, timeout=140, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 8


@pytest.mark.parametrize(
    ("imports", "framework"),
    [
        ("import horovod.torch, hvd_elastic_ext.tensorflow", "tensorflow"),
        ("import horovod.tensorflow, hvd_elastic_ext.worker.process.steps", "tensorflow"),
        ("import horovod.tensorflow, horovod.torch, hvd_elastic_ext.torch", "torch"),
    ],
)
def test_our_module_for_tensorflow_or_horovods_alone_makes_its_world_the_one_of_the_process(
    imports: str, framework: str
) -> None:
    done = in_python(f"{imports}; from hvd_elastic_ext.worker import stock; print(stock.FRAMEWORK)")
    assert done.stdout == f"{framework}\n", done.stderr


def test_a_process_that_trains_with_torch_already_is_told_so_in_one_line() -> None:
    done = in_python("import hvd_elastic_ext.torch, hvd_elastic_ext.tensorflow")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "hvd_elastic_ext.core.errors.UsageError: hvd_elastic_ext.tensorflow comes too late: this process already trains"
    )
