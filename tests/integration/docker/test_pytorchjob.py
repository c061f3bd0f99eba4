"""``pytorchjob.yaml`` as the training operator starts it: with its variables, and torchrun itself."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.worker.engines.torchrun_slot import Rendezvous, torchrun_env
from tests.support.jobs import SCRIPT, example, rendered
from tests.support.kube import operators
from tests.support.ports import free_port
from tests.support.processes import run_process

ROOT = Path(__file__).parents[3]


def variables(root: Mapping[str, Any], *, endpoint: str = "") -> dict[str, str]:
    """Those of the operator, and the template's own."""
    given = operators.variables(root)
    own = {each["name"]: each["value"] for each in container(root)["env"]}
    return {**given, **({"PET_RDZV_ENDPOINT": endpoint} if endpoint else {}), **own}


def container(root: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = root["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    return found


def test_torchruns_own_parser_reads_the_operators_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    root = rendered(example("pytorchjob", gpus=4, min_workers=2, workers=3)).root
    for name, value in variables(root).items():
        monkeypatch.setenv(name, value)
    assert container(root)["command"] == ["tini", "--", "torchrun"]
    read = get_args_parser().parse_args(container(root)["args"])
    assert (read.nnodes, read.nproc_per_node, read.max_restarts) == ("2:8", "4", 100)
    assert (read.rdzv_backend, read.rdzv_endpoint, read.standalone) == ("c10d", "digits-worker-0:23456", False)
    assert read.training_script == SCRIPT


def test_torchruns_own_parser_reads_what_our_engine_sets_without_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(rank=5, size=6, local_rank=1, local_size=2, cross_rank=2, cross_size=3)
    meets = Rendezvous(node=2, nodes=3, address="10.0.0.1", port=20_001, restarts=4)
    for name, value in torchrun_env({}, place, meets, job="digits").items():
        monkeypatch.setenv(name, value)
    read = get_args_parser().parse_args([SCRIPT])
    assert (read.nnodes, read.node_rank, read.nproc_per_node) == ("3", 2, "2")
    assert (read.master_addr, read.master_port, read.rdzv_endpoint) == ("10.0.0.1", 20_001, "")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_two_workers_of_a_submitted_pytorchjob_train_together(tmp_path: Path) -> None:
    root = rendered(example("pytorchjob", min_workers=2, command=("python", SCRIPT, "--epochs", "1"))).root
    words = [word.replace(SCRIPT, str(ROOT / "examples/01-digits/train.py")) for word in container(root)["args"]]
    env = {**os.environ, **variables(root, endpoint=f"127.0.0.1:{free_port()}"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(run_process(command, env=env, cwd=tmp_path)) for _ in range(2)]
        assert [each.wait(240) for each in both] == [0, 0], both[0].output + both[1].output
    assert "accuracy" in both[0].output + both[1].output
