"""A long command shows its progress."""

import io
import threading

import pytest
from tooling import progress
from tooling.progress import Ticker, step_in


class Terminal(io.StringIO):
    """A stream that is a terminal, and reports when it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.written.set()


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "[ 45%] Building CXX object horovod/torch/CMakeFiles/pytorch.dir/__/common/common.cc.o",
            "45 %, pytorch: common.cc",
        ),
        (
            "[  3%] Building CXX object third_party/gloo/gloo/CMakeFiles/gloo.dir/algorithm.cc.o\n",
            "3 %, gloo: algorithm.cc",
        ),
        ("[100%] Linking CXX shared library ../../mpi_lib_v2.so", "100 %, mpi_lib_v2.so"),
        ("[100%] Built target pytorch", "100 %, pytorch"),
        ("Downloading torch-2.13.0.whl (188 MB)", "Downloading torch-2.13.0.whl (188 MB)"),
        ("Collecting numpy (from hvd-elastic-ext)", "Collecting numpy"),
        ("-- Performing Test HAS_FLAG", "configuring"),
        ("warning: something", None),
    ],
)
def test_a_line_of_output_becomes_a_short_step(line: str, step: str | None) -> None:
    assert step_in(line) == step


def test_a_terminal_sees_the_step_and_the_time_while_the_command_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TERMINAL_INTERVAL", 0.001)
    stream, now = Terminal(), iter([0.0])
    with Ticker(label="Building", stream=stream, monotonic=lambda: next(now, 83.0)) as ticker:
        ticker.saw("[ 45%] Built target gloo\n")
        ticker.saw("nothing of note\n")
        stream.written.clear()
        assert stream.written.wait(10)
        stream.written.clear()
        assert stream.written.wait(10)
    assert "\r\033[KBuilding: 1:23  45 %, gloo" in stream.getvalue()
    assert stream.getvalue().endswith("Building: 1:23  done\n")


def test_other_streams_get_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with pytest.raises(KeyError), Ticker(label="Building", stream=stream, monotonic=lambda: 0.0):
        raise KeyError
    assert stream.getvalue() == "Building: 0:00\n"
