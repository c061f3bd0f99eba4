"""A graph that waits for data of tf.data's service, which another process serves, beside one that waits for ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_process
from tests.support.tensorflow import needs_tensorflow

HERE = Path(__file__).parent
pytestmark = [needs_tensorflow, pytest.mark.timeout(300)]


@pytest.mark.soak
def test_a_graph_that_the_service_owes_data_does_not_wait_for_ranks_and_one_that_has_them_does() -> None:
    with run_process([sys.executable, HERE / "serves_data.py"], stdin=subprocess.PIPE) as server:
        address = server.wait_for(r"^grpc://\S+", timeout=100)[0]
        with run_process([sys.executable, HERE / "waits_for_data.py", address, str(server.pid)]) as client:
            assert client.wait(200) == 0, client.output
    assert client.stdout.splitlines() == ["it waits for data", "it waits for ranks", "the end: 500"]
