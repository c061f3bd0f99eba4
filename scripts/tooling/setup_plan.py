"""Decides whether set-up changes the virtual environment, and how. Pure."""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TypeVar

T = TypeVar("T")
FORMAT = 1


class Action(Enum):
    """What set-up has to do."""

    NOTHING = "nothing"
    """The environment is as wanted."""
    UPDATE = "update"
    """The environment works; install the changes over it."""
    AFRESH = "afresh"
    """The environment may be incomplete or is for something else; make it again."""


@dataclass(frozen=True)
class Options:
    """The user's choices. None means: as the last time."""

    torch_index: str | None = None
    """"" is pip's own choice."""
    mpi: bool | None = None
    tensorflow: bool | None = None
    """Beside torch."""
    python: str | None = None

    def over(self, earlier: "Options") -> "Options":
        """Return these options, completed by an earlier choice and then by the defaults."""
        return Options(
            torch_index=_first(self.torch_index, earlier.torch_index, ""),
            mpi=_first(self.mpi, earlier.mpi, False),
            tensorflow=_first(self.tensorflow, earlier.tensorflow, False),
            python=_first(self.python, earlier.python, ""),
        )


def _first(*values: T | None) -> T:
    return next(value for value in values if value is not None)


@dataclass(frozen=True)
class Stamp:
    """What a complete set-up writes into the environment at its end."""

    root: str
    """The tree's place: a moved virtual environment does not work."""
    inputs: str
    """Hash of every file that decides what is installed."""
    options: Options
    format: int = FORMAT

    def to_text(self) -> str:
        """Return the stamp as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_stamp(text: str) -> Stamp | None:
    """Read a stamp; None if it is not ours, or of another format."""
    try:
        found = json.loads(text)
        stamp = Stamp(found["root"], found["inputs"], Options(**found["options"]), found["format"])
    except (ValueError, KeyError, TypeError):
        return None
    return stamp if stamp.format == FORMAT else None


@dataclass(frozen=True)
class Found:
    """The state at the start."""

    environment: bool
    """.venv exists with an interpreter."""
    unfinished: bool
    """An earlier set-up was interrupted while it was writing."""
    stamp: Stamp | None


def decide(found: Found, wanted: Stamp) -> tuple[Action, str]:
    """Return what to do, and why."""
    if not found.environment:
        return Action.AFRESH, "there is no working .venv yet"
    if found.unfinished:
        return Action.AFRESH, "the last set-up was interrupted while installing"
    if found.stamp is None:
        return Action.UPDATE, "the last set-up did not finish, or .venv was made by other means"
    if found.stamp.root != wanted.root:
        return Action.AFRESH, f"the tree was moved here from {found.stamp.root}"
    if found.stamp.options.python != wanted.options.python:
        return Action.AFRESH, f"another Python is wanted: {wanted.options.python}"
    if found.stamp.options.tensorflow and not wanted.options.tensorflow:
        return Action.AFRESH, "TensorFlow is not wanted any more"
    if found.stamp.options != wanted.options:
        return Action.UPDATE, "other options are wanted"
    if found.stamp.inputs != wanted.inputs:
        return Action.UPDATE, "what is to be installed has changed"
    return Action.NOTHING, "everything is in place"


def hash_inputs(files: dict[str, bytes]) -> str:
    """Hash names and contents of files."""
    parts = [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in sorted(files.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
