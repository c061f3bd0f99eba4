"""What adds and removes hosts for ``--scale-with``: a workload of a cluster, a program, a file, or nothing.

All calls may block: they are for threads, not for the loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from hvd_elastic_ext.core.errors import Transient, UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.core.workload_kinds import NAMED
from hvd_elastic_ext.io.kube.errors import ApiError, client_needed
from hvd_elastic_ext.io.programs import Program
from hvd_elastic_ext.io.replaced_file import replace
from hvd_elastic_ext.io.user_files import read_regular
from hvd_elastic_ext.launcher.sleep.replica_requests import Workload, workload

OPTION: Final = "--scale-with"
RECOMMEND: Final = "recommend"
PROGRAM_S: Final = 60.0
"""How long a program may take."""
MAX_BYTES: Final = 1 << 20
"""Bytes of a file with the number of hosts."""


class NotScaled(Transient):
    """A request failed; ``str()`` says why, in one line."""


class Scaler(Protocol):
    """``ordered``: hosts with the highest numbers go first, whichever are named."""

    @property
    def ordered(self) -> bool: ...

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        """Ask for this many hosts; ``leaving`` are not needed any more. Raises :class:`NotScaled` if that fails."""

    def asked_for(self) -> int | None:
        """How many are requested now; None if unknown. Raises :class:`NotScaled` if that fails."""

    def close(self) -> None:
        """The job ends: end what still runs. For any thread; does not wait for a request."""


@dataclass(frozen=True, slots=True)
class FileScaler:
    """Replaces a JSON file: ``{"hosts": 4, "leaving": ["h3"], "reason": "..."}``. Another program reads it and acts."""

    path: Path
    ordered: bool = False

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        """Replace the file as a whole."""
        try:
            replace(self.path, to_text({"hosts": hosts, "leaving": list(leaving), "reason": reason}) + "\n")
        except OSError as error:
            raise NotScaled(f"{self.path} cannot be written: {error.strerror}") from None

    def asked_for(self) -> int | None:
        """The number in the file: another program may have written it. None if there is no such file yet."""
        try:
            hosts = json.loads(read_regular(self.path, most=MAX_BYTES))["hosts"]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotScaled(f"{self.path} cannot be read: {error.strerror or error}") from None
        except (ValueError, TypeError, LookupError, RecursionError):
            hosts = None
        if type(hosts) is not int or hosts < 0:
            raise NotScaled(f'{self.path} does not say {{"hosts": NUMBER}}')
        return hosts

    def close(self) -> None:
        """Nothing runs."""


class ProgramScaler:
    """Runs a program with ``HVD_ELASTIC_HOSTS``, ``HVD_ELASTIC_LEAVING`` (names, comma) and ``HVD_ELASTIC_REASON``.

    It runs without a shell: names and reasons are never part of a command line. Exit code 0 means that it accepted the
    request. Its output is not read, but for the end of standard error. One that takes too long, or still runs when the
    job ends, is killed with all that it started.
    """

    ordered = False

    def __init__(self, words: Sequence[str], *, within_s: float = PROGRAM_S) -> None:
        self._words, self._within_s = tuple(words), within_s
        self._program = Program(self._words)

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        """Run it, for ``within_s`` seconds at most."""
        own = {
            "HVD_ELASTIC_HOSTS": str(hosts),
            "HVD_ELASTIC_LEAVING": ",".join(leaving),
            "HVD_ELASTIC_REASON": reason,
        }
        name = self._words[0]
        try:
            ended = self._program.run(within_s=self._within_s, env={**os.environ, **own})
        except TimeoutError:
            raise NotScaled(f"{name} did not end within {self._within_s:g} s, and was killed") from None
        except OSError as error:
            raise NotScaled(f"{name} cannot be run: {error.strerror}") from None
        if ended.code:
            last = ended.error.decode("utf-8", "replace").strip().rpartition("\n")[2]
            detail = f": {external_text(last)}" if last else ""
            raise NotScaled(f"{name} ended with exit code {ended.code}{detail}")

    def asked_for(self) -> int | None:
        """None: unknown."""
        return None

    def close(self) -> None:
        """Kill it if it runs."""
        self._program.stop()


class ClusterScaler:
    """The replica count of a workload. Loads the official client at its first use."""

    def __init__(self, job: Workload, environ: Mapping[str, str]) -> None:
        with client_needed(OPTION):
            from hvd_elastic_ext.launcher.sleep import replicas
        self._replicas = replicas.found(job, environ, option=OPTION, asked_by=OPTION)
        self.ordered = job.kind.ordered

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        """Set the number, and name the workers that go if the kind allows that."""
        with _asked():
            self._replicas.resize(hosts, leaving)

    def asked_for(self) -> int | None:
        """The number of the workload: an autoscaler or a user may have set it."""
        with _asked():
            return self._replicas.asked_for()

    def close(self) -> None:
        """A request ends by itself: it has a deadline."""


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise NotScaled(str(error)) from None


@dataclass(frozen=True, slots=True)
class ScaleWith:
    """The value of ``--scale-with``: see :func:`read`."""

    what: str
    target: str = ""

    @property
    def acts(self) -> bool:
        """Whether something adds and removes hosts."""
        return self.what != RECOMMEND

    @property
    def ordered(self) -> bool:
        """As :attr:`Scaler.ordered`."""
        return self.what in NAMED and NAMED[self.what].ordered

    def scaler(self, environ: Mapping[str, str]) -> Scaler | None:
        """The scaler; None if sizes are only recommended. Raises :class:`UsageError` without access to the cluster."""
        match self.what:
            case "recommend":
                return None
            case "file":
                return FileScaler(Path(self.target))
            case "exec":
                return ProgramScaler(tuple(shlex.split(self.target)))
        return ClusterScaler(workload(f"{self.what}/{self.target}", option=OPTION), environ)


def read(text: str) -> ScaleWith:
    """Read ``recommend``, ``file:PATH``, ``exec:COMMAND`` or ``KIND/NAME``. Raises :class:`UsageError`."""
    if text == RECOMMEND:
        return ScaleWith(RECOMMEND)
    what, colon, target = text.partition(":")
    if colon and what in ("file", "exec"):
        try:
            words = shlex.split(target) if what == "exec" else [target]
        except ValueError as error:
            raise UsageError(f"--scale-with {text!r}: {error}") from None
        if not words or not words[0]:
            raise UsageError(f"--scale-with {text!r}: write {what}:{'PATH' if what == 'file' else 'COMMAND'}")
        return ScaleWith(what, target)
    if "/" not in text:
        raise UsageError(
            f"--scale-with {text!r}: write recommend, file:PATH, exec:COMMAND or KIND/NAME, such as statefulset/digits"
        )
    kind = workload(text, option=OPTION)
    return ScaleWith(kind.kind.name, kind.name)
