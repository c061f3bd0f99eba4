"""Files of `torch.save` are read as tensors and plain values, and nothing that they name is run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hvd_elastic_ext.checkpoint.conversion.import_torch import import_torch_save
from hvd_elastic_ext.core.errors import StateError


class Own:
    """Not plain."""


class Harmful:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["now", "before torch 1.6"])
def test_state_dicts_come_back_exact(options: dict[str, Any], tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "a.pt", **options
    )
    back = import_torch_save(tmp_path / "a.pt")
    assert back["epoch"] == 3
    assert torch.equal(back["model"]["weight"], model.weight)
    newcomer = torch.optim.Adam(nn.Linear(2, 1).parameters())
    newcomer.load_state_dict(back["optimizer"])
    assert newcomer.state_dict()["state"][0]["step"] == 1


@pytest.mark.parametrize("version", ["2.5.1", "2.5.1+cu124", "2.1.0a0+git123", "1.13.1", "odd"])
def test_a_torch_that_may_run_what_a_file_holds_reads_none(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(StateError, match=r"a\.pt: torch .* may run code .*; install torch 2\.6 or later") as refusal:
        import_torch_save(tmp_path / "a.pt")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0+cpu", "3.0.0"])
def test_a_later_torch_reads_them(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    monkeypatch.setattr(torch, "__version__", version)
    assert import_torch_save(tmp_path / "a.pt") == {"epoch": 3}


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a whole model": (
        lambda to: torch.save(nn.Linear(1, 1), to),
        "holds torch.nn.modules.linear.Linear, .* state dicts",
    ),
    "an object of one's own": (
        lambda to: torch.save({"best": Own()}, to),
        r"it holds [\w.]+\.Own, which is not a plain",
    ),
    "a pickle": (lambda to: to.write_bytes(pickle.dumps(Own())), "not a checkpoint of torch.save"),
    "something else": (lambda to: to.write_bytes(b"hello" * 10), "not a checkpoint of torch.save, or it is damaged"),
    "nothing": (lambda to: to.write_bytes(b""), "not a checkpoint of torch.save, or it is damaged"),
    "a folder": (lambda to: to.mkdir(), "Is a directory"),
    "no file": (lambda to: None, "No such file"),
}


@pytest.mark.parametrize("what", FILES)
def test_any_other_file_is_refused_in_one_line_that_names_it(what: str, tmp_path: Path) -> None:
    make, why = FILES[what]
    make(tmp_path / "a.pt")
    with pytest.raises(StateError, match=rf"a\.pt: .*{why}") as refusal:
        import_torch_save(tmp_path / "a.pt")
    assert "\n" not in str(refusal.value)


def test_half_a_file_is_damaged(tmp_path: Path) -> None:
    whole = tmp_path / "a.pt"
    torch.save({"a": torch.ones(1000)}, whole)
    whole.write_bytes(whole.read_bytes()[:-2000])
    with pytest.raises(StateError, match="damaged"):
        import_torch_save(whole)


def test_nothing_is_run_even_if_the_environment_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"a": Harmful(tmp_path / "made")}, tmp_path / "a.pt")
    with pytest.raises(StateError, match=r"it holds posix\.mkdir"):
        import_torch_save(tmp_path / "a.pt")
    assert not (tmp_path / "made").exists()
    torch.load(tmp_path / "a.pt", weights_only=False)  # what it would have done
    assert (tmp_path / "made").exists()
