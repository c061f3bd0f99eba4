"""Two real Horovod ranks that share a global batch, against one process that has it all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import run_process

HERE = Path(__file__).parent
HOROVODRUN = Path(sys.executable).with_name("horovodrun")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    directory = tmp_path_factory.mktemp("ranks")
    command = [
        HOROVODRUN,
        "-np",
        "2",
        "-H",
        "localhost:2",
        "--gloo",
        sys.executable,
        HERE / "global_batch.py",
        directory,
    ]
    with run_process(command, orderly=True) as process:
        assert process.wait(timeout=100) == 0, process.output
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


def test_weights_are_those_of_one_process_after_every_step(ranks: list[dict[str, Any]]) -> None:
    for saw in ranks:
        assert len(saw["together"]) == 3
        for ours, alone in zip(saw["together"], saw["alone"], strict=True):
            assert ours == pytest.approx(alone, rel=1e-9)


def test_horovod_adds_the_passes_up_and_does_not_divide_by_them(ranks: list[dict[str, Any]]) -> None:
    assert [saw["undivided"] for saw in ranks] == [[-2.0]] * 2


def test_ranks_share_the_counting_of_a_streams_shards(ranks: list[dict[str, Any]]) -> None:
    assert [saw["counted"]["read"] for saw in ranks] == [["3", "5"], ["4"]]
    assert [saw["counted"]["lengths"] for saw in ranks] == ["3 4 5"] * 2
