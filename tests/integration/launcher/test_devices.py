"""One bad device of a host, with real Horovod and devices that have nothing but names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched

SEATS = Path(__file__).with_name("seats.py")
OPTIONS = ("-np", "3", "--min-np", "1", "--settle", "0.2", "--blacklist-cooldown-range", "2", "60", "--job", "devices")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_bad_device_costs_its_slot_and_every_other_process_has_its_own_device(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_ELASTIC_DEVICES", "gpu-a,gpu-b,gpu-c")
    launched.set_hosts("localhost:3")

    def strikes() -> list[str]:
        return [record.get("subject") for record in launched.events("struck")]

    def steps(size: int, device: str) -> int:
        return len(re.findall(rf"size {size} {device} uses {device}\b", launched.process.stdout))

    def wait_for(what: str, found: Callable[[], object]) -> None:
        launched.wait_for(what, found, timeout=180.0)

    with launched.run(*OPTIONS, sys.executable, SEATS) as process:
        wait_for("steps of all three", lambda: all(steps(3, f"gpu-{each}") > 3 for each in "abc"))
        (launched.directory / "broken").write_text("gpu-b")
        wait_for("two that train on", lambda: all(steps(2, f"gpu-{each}") > 3 for each in "ac"))
        wait_for("a third strike", lambda: len(strikes()) >= 3)
        (launched.directory / "leave").write_text("gpu-c")
        wait_for("one alone", lambda: steps(1, "gpu-a") > 3)
        before = steps(2, "gpu-c")
        wait_for("another in its place", lambda: steps(2, "gpu-c") > before + 3)
        (launched.directory / "broken").unlink()
        before = steps(3, "gpu-b")
        wait_for("all three again", lambda: steps(3, "gpu-b") > before + 3)
        said = process.stdout
    assert set(strikes()) == {"slot 1 of localhost"}
    assert [record.get("cooldown_s") for record in launched.events("struck")][:3] == [2.0, 4.0, 8.0]
    new = re.findall(r"new (\S+) sees (\S+) local (\d)", said)
    seen = {device: [each[1:] for each in new if each[0] == device] for device in ("gpu-a", "gpu-b", "gpu-c")}
    everybody = "gpu-a,gpu-b,gpu-c"
    assert seen["gpu-a"] == [(everybody, "0")], "it was never restarted"
    assert seen["gpu-c"] == [(everybody, "2"), ("gpu-a,gpu-c", "1")]
    assert seen["gpu-b"][:3] == [(everybody, "1")] * 3, "the first one, and two that failed"
    assert set(seen["gpu-b"][3:]) == {("gpu-a,gpu-c,gpu-b", "2")}
    used = re.findall(r"size \d (\S+) uses (\S+)", said)
    assert all(own == uses for own, uses in used)
