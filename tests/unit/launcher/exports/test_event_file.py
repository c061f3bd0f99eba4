"""Event files, read by TensorBoard's own reader."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.exports import tensorboard
from hvd_elastic_ext.launcher.exports.tensorboard import EventFile, Point, ScalarWriter
from tests.support.clock import ManualClock


@pytest.fixture(autouse=True)
def no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's reader has an own module in place of TensorFlow. TensorFlow loads Keras with the backend that the
    environment names at that time, which tests of Keras on torch could not change any more."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))


def scalars(folder: Path) -> Mapping[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in sorted(reader.Tags()["scalars"])
    }


class Launcher:
    """A launcher that writes into ``folder``."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.board = ScalarWriter(EventFile(folder, clock.wall), clock)
        self._journal = Journal(io.StringIO(), clock, lambda event, _, fields: self.board.note(event, fields))

    def stepped(self, *steps: int, size: int = 2) -> None:
        for step in steps:
            self.clock.advance(0.5)
            self._journal.record("stepped", generation=1, step=step, size=size, rank=0, values={"loss": 1 / step})

    def resized(self, **fields: Any) -> None:
        self._journal.record("resized", generation=2, **fields)


def test_resizes_and_roll_backs_make_one_series_in_which_no_step_is_twice(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, ManualClock(mono=0.0, wall=2e9))
    launcher.board.signals = lambda: {"queue": 3.0}
    launcher.stepped(1, 2, 3, 4, 5)
    launcher.resized(cause="worker failed", steps_lost=2)
    launcher.stepped(4, 5, 6, size=1)
    launcher.board.close()
    found = scalars(tmp_path)
    assert found["job/world_size"] == [(1, 2), (2, 2), (3, 2), (4, 1), (5, 1), (6, 1)]
    assert [step for step, _ in found["training/loss"]] == [1, 2, 3, 4, 5, 6]
    assert found["job/steps_per_second"] == [(2, 2), (3, 2), (5, 2), (6, 2)]
    assert found["signals/queue"] == [(step, 3) for step in range(1, 7)]


def test_the_next_launcher_of_a_run_goes_on_where_training_does(tmp_path: Path) -> None:
    clock = ManualClock(mono=0.0, wall=2e9)
    first = Launcher(tmp_path, clock)
    first.stepped(1, 2, 3, 4, 5)
    first.board.close()
    clock.advance(60.0)
    second = Launcher(tmp_path, clock)
    second.stepped(4, 5, 6, size=3)
    second.board.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert scalars(tmp_path)["job/world_size"] == [(1, 2), (2, 2), (3, 2), (4, 3), (5, 3), (6, 3)]


def test_after_an_error_of_the_disk_another_file_goes_on(tmp_path: Path) -> None:
    clock = ManualClock(mono=0.0, wall=2e9)
    file = EventFile(tmp_path, clock.wall)
    assert file.take((2e9, Point(1, {"a": 1.0}, 1))) == ""
    assert file._file is not None

    class Full:
        """Accepts only a part of a record."""

        def write(self, data: bytes, /) -> int:
            file._file.write(data[:5])
            raise OSError(28, "No space left on device")

    file._records = file._writer(Full())
    assert file.take((2e9, Point(2, {"a": 2.0}))) == f"{tmp_path} cannot be written: No space left on device"
    clock.advance(1.0)
    assert file.take((2e9, Point(3, {"a": 3.0}))) == ""
    file.close()
    assert scalars(tmp_path)["a"] == [(1, 1), (3, 3)]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    real = os.fdopen

    def opened(descriptor: int, *args: Any, **kwargs: Any) -> Any:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        file = real(descriptor, *args, **kwargs)
        return disk.limits(file) if path.parent == tmp_path else file

    monkeypatch.setattr(tensorboard.os, "fdopen", opened)
    return disk


class Disk:
    """While it is full, files can be created and not written, as on a real disk."""

    def __init__(self) -> None:
        self.full = False

    def limits(self, file: Any) -> Any:
        disk, kept = self, list[bytes]()

        class Limited:
            def write(self, data: bytes) -> int:
                kept.append(data)
                return len(data)

            def flush(self) -> None:
                if disk.full:
                    raise OSError(28, "No space left on device")
                file.write(b"".join(kept))
                kept.clear()
                file.flush()

            def close(self) -> None:
                file.close()

        return Limited()


def test_a_disk_that_stays_full_gets_no_file_for_each_step(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock(mono=0.0, wall=2e9)
    file = EventFile(tmp_path, clock.wall)
    assert file.take((2e9, Point(1, {"a": 1.0}, 1))) == ""
    disk.full = True
    for step in range(2, 100):
        clock.advance(1.0)
        assert "No space left" in file.take((2e9, Point(step, {"a": 1.0})))
    file.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_roll_back_while_the_disk_is_full_is_told_when_there_is_room(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock(mono=0.0, wall=2e9)
    file = EventFile(tmp_path, clock.wall)
    for step in (1, 5, 9):
        assert file.take((2e9, Point(step, {"a": float(step)}))) == ""
    disk.full = True
    assert file.take((2e9, Point(4, {"a": 40.0}, 4)))
    disk.full = False
    clock.advance(1.0)
    assert file.take((2e9, Point(8, {"a": 80.0}))) == ""
    file.close()
    assert scalars(tmp_path)["a"][0] == (1, 1)
    assert (5, 5.0) not in scalars(tmp_path)["a"]
    assert scalars(tmp_path)["a"][-1] == (8, 80)


def test_a_name_that_no_file_can_hold_costs_neither_its_value_nor_later_ones(tmp_path: Path) -> None:
    clock = ManualClock(mono=0.0, wall=2e9)
    board = ScalarWriter(EventFile(tmp_path, clock.wall), clock)
    board.note("stepped", {"step": 1, "size": 2, "values": {"caf\udce9": 1.0}})
    board.note("stepped", {"step": 2, "size": 2, "values": {"caf\udce9": 2.0}})
    board.close()
    assert scalars(tmp_path)["training/caf?"] == [(1, 1), (2, 2)]


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--tensorboard: .* cannot be written: "):
        EventFile(tmp_path / "file" / "runs", lambda: 0.0)


def test_without_the_package_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        EventFile(tmp_path, lambda: 0.0)
