"""A watch that keeps each text that it has read."""

import threading
from pathlib import Path

from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.io.file_watch import FileWatch, read_text
from tests.support.waiting import wait_until

NEVER = 3600.0


class Watched:
    """A watch of a file that keeps each text that it has read."""

    def __init__(self, path: Path, *, relook: float = NEVER) -> None:
        self.path = path
        self.texts: list[str | None] = []
        self.told = threading.Event()
        self.watch = FileWatch(path, self._look, relook=relook)

    def _look(self) -> None:
        try:
            text: str | None = read_text(self.path)
        except SourceUnavailable:
            text = None
        self.texts.append(text)
        self.told.set()

    @property
    def text(self) -> str | None:
        return self.texts[-1] if self.texts else "not looked yet"

    def __enter__(self) -> "Watched":
        self.watch.start()
        assert self.told.wait(10)  # the call right after the start
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.stop()

    def wait_for(self, text: str | None) -> None:
        wait_until(lambda: self.text == text, what=repr(text), show=lambda: self.texts[-5:])


def replace(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.tmp")
    new.write_text(text)
    new.replace(path)
