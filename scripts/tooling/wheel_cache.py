"""The cache of wheels: one process builds each wheel once, and it appears complete or not at all.

CACHE/wheels/KEY/horovod-….whl, facts.json      finished
CACHE/work/KEY/, CACHE/work/PREFIX-…/           in use, or left by a killed process
CACHE/locks/KEY, CACHE/locks/PREFIX-…           held meanwhile
CACHE/sdist/, CACHE/logs/
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from .processes import say
from .wheel_key import WheelFacts, differences

Builder = Callable[[Path], Path]
"""Builds a wheel in the given empty directory, and returns the wheel's path."""


def cache_directory(environment: "os._Environ[str] | dict[str, str]") -> Path:
    """Return the project's cache directory, outside any tree."""
    base = environment.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and is ignored.
    home = Path(base) if base.startswith("/") else Path("~/.cache").expanduser()
    return home / "hvd-elastic-ext"


class WheelCache:
    """The wheels in one directory, which several processes may share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, facts: WheelFacts) -> Path | None:
        """Return the finished wheel for these facts, if there is one."""
        found = sorted((self.directory / "wheels" / facts.key()).glob("*.whl"))
        return found[0] if found else None

    def why_not(self, facts: WheelFacts) -> str | None:
        """Return what the most similar wheel for these frameworks has been built with instead; None without one."""
        found: list[list[str]] = []
        for path in sorted(self.directory.glob("wheels/*/facts.json")):
            had = json.loads(path.read_text())
            same = (had["torch"], had.get("tensorflow"), had["python_tag"])
            if same == (facts.torch, facts.tensorflow, facts.python_tag) and any(path.parent.glob("*.whl")):
                found.append(differences(had, facts))
        fewest = min(found, key=len, default=None)
        return None if fewest is None else "; ".join(fewest)

    def log(self, facts: WheelFacts) -> Path:
        """Return the path of the build's log."""
        return self.directory / "logs" / f"{facts.key()}.log"

    def get_or_build(self, facts: WheelFacts, build: Builder) -> Path:
        """Return the wheel. Build it first, or wait for another process that does."""
        if found := self.find(facts):
            return found
        with locked(
            self.directory / "locks" / facts.key(), waiting="Another process is building the same Horovod wheel"
        ):
            return self.find(facts) or self._build(facts, build)

    def sweep(self) -> None:
        """Remove work folders that no process uses: a killed build, or one that lost its machine, left them."""
        for folder in sorted((self.directory / "work").glob("*")):
            lock = self.directory / "locks" / folder.name
            lock.parent.mkdir(exist_ok=True)
            with lock.open("w") as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                say(f"Removing what an unfinished build left: {folder}")
                shutil.rmtree(folder, ignore_errors=True)
                if "-" in folder.name:  # others may wait for the lock of a wheel
                    lock.unlink()

    @contextlib.contextmanager
    def work_folder(self, prefix: str) -> Iterator[Path]:
        """Make a new folder for the block; :meth:`sweep` removes it if this process is killed."""
        folder = self.directory / "work" / f"{prefix}-{secrets.token_hex(4)}"
        lock = self.directory / "locks" / folder.name
        with locked(lock, waiting="A work folder is in use"):
            folder.mkdir(parents=True)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink()

    def _build(self, facts: WheelFacts, build: Builder) -> Path:
        work = self.directory / "work" / facts.key()
        shutil.rmtree(work, ignore_errors=True)  # left by a killed build; the lock keeps others out
        work.mkdir(parents=True)
        try:
            wheel = build(work)
            finished = work / "finished"
            finished.mkdir()
            wheel.rename(finished / wheel.name)
            (finished / "facts.json").write_text(facts.describe())
            _publish(finished, self.directory / "wheels" / facts.key())
        finally:
            shutil.rmtree(work, ignore_errors=True)
        wheel_path = self.find(facts)
        assert wheel_path is not None
        return wheel_path


def _publish(finished: Path, place: Path) -> None:
    """Move a finished directory into place in one step, after its content is on disk."""
    for path in finished.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)  # a directory without a wheel: somebody removed it by hand
    finished.rename(place)


@contextlib.contextmanager
def locked(path: Path, *, waiting: str) -> Iterator[None]:
    """Hold an exclusive lock for the block; print `waiting` once if another process has it.

    The kernel releases the lock when its holder ends, in any way.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{waiting}; waiting for it to finish …")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
