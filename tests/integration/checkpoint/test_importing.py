"""What was exported for other programs comes back into a State, to the same bits."""

from __future__ import annotations

from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.cli import main
from hvd_elastic_ext.core.commit_record import Identity
from tests.integration.checkpoint.made_checkpoints import kept, save, trained


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


@pytest.mark.parametrize("passes", [1, 2])
def test_an_export_is_loaded_again_to_the_same_bits(passes: int, tmp_path: Path) -> None:
    hvd.init()
    store, out = tmp_path / "store", tmp_path / "model.pt"
    with kept(trained(), Identity(7, 0, 1, 5)) as one:
        save(store, [one])
    assert main(["checkpoints", "export", str(store), "--to", str(out)]) == 0
    before, other = trained(), trained()
    for _ in range(passes):
        for tensor in [*other.model.state_dict().values(), *other.optimizer.state_dict()["state"][0].values()]:
            tensor.zero_()
        state = elastic.TorchState(
            model=other.model, optimizer=other.optimizer, epoch=0, history=torch.zeros(1), names=()
        )
        assert elastic.load_checkpoint(state, out)
    for name, tensor in before.model.state_dict().items():
        assert bits(other.model.state_dict()[name]) == bits(tensor), name
        assert other.model.state_dict()[name].stride() == tensor.stride()
    for number, entry in before.optimizer.state_dict()["state"].items():
        for name, tensor in entry.items():
            assert bits(other.optimizer.state_dict()["state"][number][name]) == bits(tensor), name
    assert other.optimizer.state_dict()["param_groups"] == before.optimizer.state_dict()["param_groups"]
    assert (state.epoch, state.names) == (5, ("a", "b"))
    assert torch.equal(state.history, torch.arange(5.0) + 5)
