"""A newcomer is in no world while it is parked. It runs the reset callbacks with the others, which may lose a peer in
them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_elastic_ext.worker.patches import horovod_hook
from hvd_elastic_ext.worker.process.standby import CallOver
from tests.unit.worker.patches.test_horovods_loop import of_tensorflow

LOST = of_tensorflow("UnknownError", "[[{{node HorovodAllreduce_grads_0}}]]")


class Newcomer:
    """A process that goes live, with a State whose reset callbacks raise these errors, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.errors, self.told, self.parks, self.call_is_over = [*errors], list[str](), True, False
        monkeypatch.setattr(horovod_hook.standby, "current", lambda: self)
        monkeypatch.setattr(horovod_hook, "_meets_others_in_resets", lambda: True)
        monkeypatch.setattr(horovod_hook, "_leave_world_of_one", self.leave)
        monkeypatch.setattr(horovod_hook, "time", SimpleNamespace(sleep=lambda seconds: self.told.append("pause")))

    def leave(self) -> Callable[[], None]:
        self.told.append("leave")
        return lambda: self.told.append("alone")

    def park(self, *, call: int, is_over: Callable[[], bool]) -> None:
        self.told.append("park")
        if self.call_is_over:
            raise CallOver

    def on_reset(self) -> None:
        self.told.append("reset")
        if self.errors:
            raise self.errors.pop(0)

    def _drop_steps(self) -> None:
        self.told.append("drop steps")

    def go_live(self) -> list[str]:
        horovod_hook._go_live(
            self,
            lambda: self.told.append("join"),
            call=1,
            is_over=lambda: False,
            lost_by=horovod_hook.error_report.names_lost_collective,
        )
        return self.told


@pytest.mark.parametrize("error", [HorovodInternalError("gone"), HostsUpdatedInterrupt(False), LOST])
def test_a_loss_in_a_reset_callback_of_a_newcomer_leads_to_the_next_world(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    again = ["drop steps", "pause", "join", "reset"]
    assert Newcomer(monkeypatch, error).go_live() == ["leave", "park", "join", "reset", *again]


def test_an_error_of_its_own_comes_through_and_a_loss_each_time_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="own"):
        Newcomer(monkeypatch, ValueError("own")).go_live()
    newcomer = Newcomer(monkeypatch, *[LOST] * 9)
    with pytest.raises(HorovodInternalError, match="HorovodAllreduce_grads_0"):
        newcomer.go_live()
    assert newcomer.told.count("join") == horovod_hook.ATTEMPTS


def test_a_newcomer_whose_call_is_over_goes_on_in_a_world_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    newcomer = Newcomer(monkeypatch)
    newcomer.call_is_over = True
    with pytest.raises(CallOver):
        newcomer.go_live()
    assert newcomer.told == ["leave", "park", "alone"]
