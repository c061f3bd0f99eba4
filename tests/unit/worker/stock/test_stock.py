"""Horovod's classes where there is Horovod, and what stands in for them where there is none."""

from __future__ import annotations

import horovod.common.elastic
import horovod.common.exceptions
import horovod.torch
import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.stock import stand_ins

ERRORS = ("HorovodInternalError", "HostsUpdatedInterrupt")
STATES = ("State", "ObjectState", "TorchState")


def test_with_horovod_every_name_is_horovods_own() -> None:
    assert stock.PRESENT
    for name in ERRORS:
        assert getattr(stock, name) is getattr(horovod.common.exceptions, name)
    assert stock.State is horovod.common.elastic.State
    assert stock.ObjectState is horovod.common.elastic.ObjectState
    assert stock.notification_manager is horovod.common.elastic.notification_manager
    assert issubclass(stock.TorchState, horovod.common.elastic.ObjectState)
    stock.demand("this")


def test_stand_ins_have_horovods_names_bases_and_arguments() -> None:
    for name in ERRORS:
        assert getattr(stand_ins, name).__bases__ == getattr(stock, name).__bases__ == (RuntimeError,)
    assert stand_ins.HostsUpdatedInterrupt(skip_sync=False).skip_sync is False
    for name in STATES:
        theirs, ours = getattr(stock, name), getattr(stand_ins, name)
        assert [base.__name__ for base in ours.__mro__] == [base.__name__ for base in theirs.__mro__]
    assert set(vars(stand_ins.State(None, None))) <= set(vars(stock.State(None, None)))


def test_keywords_of_a_stand_in_state_are_attributes_and_its_callbacks_run_in_order() -> None:
    said: list[str] = []

    class Own(stand_ins.TorchState):
        def reset(self) -> None:
            said.append("reset")

        def save(self) -> None:
            said.append("save")

        def check_host_updates(self) -> None:
            said.append("look")

    state = Own(model=None, epoch=3)
    state.register_reset_callbacks([lambda: said.append("first"), lambda: said.append("second")])
    state.on_reset()
    state.commit()
    assert (state.epoch, state.optimizer) == (3, None)
    assert said == ["reset", "first", "second", "save", "look"]


def test_a_listener_is_told_of_until_it_is_removed() -> None:
    manager = type(stand_ins.notification_manager)()
    manager.init()
    manager.register_listener("a")
    assert list(manager._listeners) == ["a"]
    manager.remove_listener("a")
    assert not manager._listeners


def test_without_horovod_what_needs_it_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "PRESENT", False)
    monkeypatch.setattr(stock, "WHY_ABSENT", "Horovod is not installed")
    with pytest.raises(UsageError, match=r"^that: Horovod is not installed; hvd-elastic build-horovod") as caught:
        stock.demand("that")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ModuleNotFoundError("No module named 'horovod'", name="horovod"), "Horovod is not installed"),
        (ModuleNotFoundError("No module named 'yaml'", name="yaml"), "Horovod cannot be imported (No module named"),
        (ImportError("x.so: undefined\n symbol"), "Horovod cannot be imported (x.so: undefined symbol)"),
    ],
)
def test_horovod_that_is_missing_is_told_from_one_that_is_broken(
    error: ImportError, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "horovod.torch.mpi_ops":
                raise error

    monkeypatch.delitem(__import__("sys").modules, "horovod.torch.mpi_ops")
    monkeypatch.delattr(horovod.torch, "mpi_ops")
    monkeypatch.setattr("sys.meta_path", [Broken(), *__import__("sys").meta_path])
    framework, absent = stock._find()
    assert framework is None
    assert str(absent).startswith(why)
