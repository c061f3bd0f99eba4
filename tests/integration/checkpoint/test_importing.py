"""What was exported for other programs comes back into a State, to the same bits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import horovod.torch as hvd
import numpy
import pytest
import torch
from safetensors.numpy import load_file

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.cli import main
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.importing import Importing
from tests.integration.checkpoint.made_checkpoints import OfParts, kept, save, trained


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


def test_numpys_values_are_exported_without_numpy_and_come_back_as_numpys(tmp_path: Path) -> None:
    """Defect: torch.load refused the file, and safetensors had their repr, which leaves out most of a long array."""
    values = {
        "rows": numpy.arange(3000.0), "swapped": numpy.arange(3, dtype=">i2"), "wide": numpy.ones(2, "g"),
        "none": numpy.zeros((0, 2), "f4"), "one": numpy.array(3), "words": numpy.array(["a", "b"]),
        "days": numpy.array(["2026-01-01"], "M8[D]"), "best": numpy.float32(0.1), "done": numpy.bool_(True),
        "day": numpy.datetime64("2026-01-01"), "span": numpy.timedelta64(5, "D"), "epoch": 1,
    }  # fmt: skip

    def state(**values: Any) -> Inventory:
        return Inventory(SimpleNamespace(**values), {}, names=list(values), part_for=lambda value: None)

    store, out = tmp_path / "store", tmp_path / "out.pt"
    with kept(OfParts(state(**values)), Identity(7, 0, 1, 5)) as one:
        save(store, [one])
    assert main(["checkpoints", "export", str(store), "--to", str(out)]) == 0
    loaded = torch.load(out, weights_only=True)
    assert {name: type(value) for name, value in loaded.items()} == {
        **dict.fromkeys(("rows", "swapped", "wide", "none", "one"), torch.Tensor), "words": list, "days": list,
        "best": float, "done": bool, "day": str, "span": str, "epoch": int,
    }  # fmt: skip
    into = state(**{**values, "rows": numpy.zeros(1), "best": numpy.float32(9), "day": numpy.datetime64("2000-01-01")})
    assert Importing().take(out, into, None)
    for name in ("rows", "swapped", "none", "one", "best", "done", "day"):
        given, kept_ = getattr(into.owner, name), values[name]
        assert (type(given), given.shape) == (type(kept_), kept_.shape), name
        assert numpy.array_equal(given, kept_), name
    tensors = tmp_path / "out.safetensors"
    assert main(["checkpoints", "export", str(store), "--to", str(tensors)]) == 0
    assert numpy.array_equal(load_file(tensors)["rows"], values["rows"])


def test_a_value_that_would_become_another_one_is_refused_by_name_before_anything_is_changed() -> None:
    values = {"epoch": 1, "best": numpy.int64(0)}
    into = Inventory(SimpleNamespace(**values), {}, names=list(values), part_for=lambda value: None)
    with pytest.raises(StateError, match=r"^the given dict: best: it is 0\.7, and the State has a numpy\.int64 there$"):
        Importing().take({"epoch": 5, "best": 0.7}, into, None)
    assert vars(into.owner) == values
