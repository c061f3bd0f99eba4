"""The errors that users see, or that one folder raises for another, grouped by what the caller should do.

    ElasticError                    message = what, where, what to do
    ├── Transient                   keep the last good value and try again
    │   ├── SourceUnavailable       a host list cannot be read now
    │   ├── StoreFailed             an operation of storage failed               checkpoint/format/errors.py
    │   ├── TransferFailed          a commit was not sent to another host        checkpoint/transfer/transfer.py
    │   ├── PublishFailed           hosts could not be published                 discover/publish/files.py
    │   ├── NotScaled               hosts could not be requested                 launcher/scaling/scalers.py
    │   ├── NoSignal                a signal has no value now                    launcher/scaling/signals.py
    │   └── BeingWritten            a file is read while it is written           io/file_watch.py
    ├── ApiError                    an API server refused, or did not answer: it says whether
    │                               trying again may help                        io/kube/errors.py
    └── Permanent                   stop; trying again cannot help
        ├── UsageError              a command line, a setting or a call is wrong (exit 2)
        │   ├── NoSuchJob           there is no such job on a cluster (exit 1)   jobs/cluster/changes.py
        │   └── WrongState          a job or pod is in another state (exit 1)    jobs/cluster/api.py
        ├── StateError              a State cannot be made, kept or restored as the script defines it
        ├── DataError               training data has changed since the job began
        ├── BadHosts                a host list is not valid
        ├── BadPublication          a pushed publication is not valid
        ├── Missing, Unreadable, Damaged      a checkpoint                       checkpoint/format/errors.py
        ├── CannotListen            an address is taken                          discover/publish/server.py
        ├── NotAttached             a command in a pod of a job did not run      jobs/cluster/terminal.py
        ├── NotSent                 code was not sent to the launcher's pod      jobs/cluster/making.py
        ├── NotReached              a job did not reach the awaited state        jobs/cluster/changes.py
        ├── OwnedByOther            another daemon writes this file              discover/publish/files.py
        └── JobFailed               training failed (exit 1)
            ├── Interrupted         a signal stopped the launcher (exit 128 + signal)
            └── Asleep              too few hosts: the job waits, or waited, without any process (exit 75)

Training scripts see ``StateError``, ``UsageError`` and ``DataError``; :mod:`hvd_elastic_ext.torch` has them.
``AttributeError`` means that a State has no such attribute.

``BadHosts`` is permanent for the *text* it describes: the watcher of a file
keeps the last good hosts and waits for the next text.
"""

from __future__ import annotations

import errno

HOSTS_KEPT = "; keeping the hosts known so far"
"""The end of a source's error if hosts are known."""


class ElasticError(Exception):
    """Base of all errors. ``str(error)`` is one line that says what to do."""

    exit_code = 1


class Transient(ElasticError):
    """Keep the last good value and retry."""


class SourceUnavailable(Transient):
    """A host list cannot be read now; ``where`` names the file, script or URL.

    Code that has earlier hosts appends :data:`HOSTS_KEPT`.
    """

    def __init__(self, where: str, why: str) -> None:
        self.where = where
        self.why = why
        super().__init__(f"{where}: {why}")


class Permanent(ElasticError):
    """Stop, with the reason and the fix."""


class UsageError(Permanent):
    """The command line, the environment, a configuration file or the call of a function is wrong."""

    exit_code = 2


class StateError(Permanent):
    """A State cannot be made, kept or restored as the training script defines it.

    The message names the attribute, as ``state.NAME``, and says what to change in the script.
    """


class DataError(Permanent):
    """Training data has changed since the job began: a shard has another length, or was replaced."""


class BadHosts(Permanent):
    """A host list is malformed.

    ``where``: the file (or script, or option). ``line``: its number from 1; ``None``
    if the list has no lines. ``why``: what is wrong and how to write it. ``more``:
    the number of further bad lines.
    """

    exit_code = 2

    def __init__(self, where: str, line: int | None, why: str, *, more: int = 0) -> None:
        self.where = where
        self.line = line
        self.why = why
        self.more = more
        place = where if line is None else f"{where}:{line}"
        tail = f" (and {more} more bad line{'s' if more > 1 else ''})" if more else ""
        super().__init__(f"{place}: {why}{tail}")


class BadPublication(Permanent):
    """A pushed publication is malformed or of a version this program does not know."""


class JobFailed(Permanent):
    """Training failed; the message names the first cause. Two with the same content are equal."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobFailed) or type(self) is not type(other):
            return NotImplemented
        return (self.args, vars(self)) == (other.args, vars(other))

    def __hash__(self) -> int:
        return hash((type(self), self.args))

    @property
    def line(self) -> str:
        """The message without a traceback, which its process has written itself."""
        first, _, traceback = str(self).partition("\n")
        return f"{first}; its traceback is above, in the output of the process" if traceback else first


class Interrupted(JobFailed):
    """The signal ``signal_number`` stopped the launcher."""

    def __init__(self, signal_number: int, why: str) -> None:
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number
        super().__init__(why)


class Asleep(JobFailed):
    """Too few hosts are left. All processes have ended; the same command continues from their last state.

    ``path``: the newest checkpoint, which is sealed and verified; ``step``: its step. None if there was no training to
    keep, or if no agent is left to look.
    """

    exit_code = 75

    def __init__(self, why: str, *, path: str | None = None, step: int | None = None) -> None:
        self.path = path
        self.step = step
        super().__init__(why)


def users_mistake(error: OSError) -> str | None:
    """Return one line for a system error about a path or a full disk; None for other errors. Pure."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space is left where {error.filename or 'the output'} goes"
    if error.filename is None:
        return None
    return f"{error.filename}: {error.strerror}; check that the path is right and that this user may use it"
