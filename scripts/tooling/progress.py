"""Progress of a long command: a live line on a terminal, a plain line now and then elsewhere."""

import re
import shutil
import threading
from collections.abc import Callable
from typing import TextIO

TERMINAL_INTERVAL = 0.5
PLAIN_INTERVAL = 15.0

_MAKE = re.compile(r"^\[\s*(\d+)%\] (?:Building \w+ object (\S+)|(?:Linking.*? )(\S+)$|Built target (\S+))")
_PIP = re.compile(r"^\s*((?:Collecting|Downloading|Using cached|Installing|Building|Preparing|Processing) .{1,90})")
_CMAKE = re.compile(r"^-- (Configuring|Generating|Performing|Detecting|Looking|Check)")


def step_in(line: str) -> str | None:
    """Return the step that a line of make, CMake or pip reports, in a few words, else None."""
    if made := _MAKE.match(line):
        percent, compiled, linked, built = made.groups()
        return f"{percent} %, {_name(compiled or linked or built)}"
    if fetched := _PIP.match(line):
        return fetched[1].split(" (from")[0]
    return "configuring" if _CMAKE.match(line) else None


def _name(path: str) -> str:
    found = re.search(r"CMakeFiles/([^/]+)\.dir/(?:.*/)?([^/]+)\.o$", path)
    return f"{found[1]}: {found[2]}" if found else path.rsplit("/", 1)[-1]


def elapsed(seconds: float) -> str:
    """Format a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Ticker:
    """Shows a label, the time since the start and the newest step, from its own thread.

    A context manager; `saw` may be called from any thread.
    """

    def __init__(self, *, label: str, stream: TextIO, monotonic: Callable[[], float]) -> None:
        self._label = label
        self._stream = stream
        self._monotonic = monotonic
        self._terminal = stream.isatty()
        self._step = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._began = 0.0

    def __enter__(self) -> "Ticker":
        self._began = self._monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        ending = "" if kind else "  done"
        self._write(f"{self._label}: {elapsed(self._monotonic() - self._began)}{ending}", final=True)

    def saw(self, line: str) -> None:
        """Take note of a line of output."""
        self._step = step_in(line) or self._step

    def _tick(self) -> None:
        interval = TERMINAL_INTERVAL if self._terminal else PLAIN_INTERVAL
        while not self._stop.wait(interval):
            self._write(f"{self._label}: {elapsed(self._monotonic() - self._began)}  {self._step}", final=False)

    def _write(self, text: str, *, final: bool) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\033[K{text[:width]}" + ("\n" if final else ""))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
