"""Describe an exception of the training script for the launcher.

Standard library, errors and the fence only.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.process.fence import HOROVOD_FENCE

LONGEST: Final = 16 << 10
"""Most characters of a traceback that are sent. More of the end is kept, because the error is there."""

_BEGINNING: Final = 4 << 10
_CHAIN: Final = 8
_OURS: Final = f"{PurePath(__file__).parents[2]}/"
_PYTHON: Final = f"{PurePath(traceback.__file__).parent}/"
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_LIBRARIES: Final = frozenset({"torch", "horovod", "numpy", "tensorflow", "keras", "tf_keras"})
_INTERRUPTS: Final = frozenset({"HorovodInternalError", "HostsUpdatedInterrupt"})
_LOST: Final = frozenset({"HorovodInternalError", "DistNetworkError"})
_LOST_WORDS: Final = re.compile(
    r"gloo.*(Connection (closed|reset) by peer|Broken pipe|Socket closed|Timed out)|"
    r"remote process exited|communicator was aborted|Connection closed by peer",
    re.DOTALL,
)
"""What Gloo and NCCL write into a ``RuntimeError`` for a lost peer."""
_LOST_IN_TENSORFLOW: Final = frozenset(
    {"UnknownError", "AbortedError", "CancelledError", "InternalError", "UnavailableError"}
)
"""The errors as which TensorFlow raises the loss of a peer. It has others for operations of ranks that do not fit."""
_NOT_SAID: Final = ("Graph execution error", "Detected at ", "File ", "Traceback (", "<stack traces", "[[{{node ")
"""Beginnings of lines in TensorFlow's errors that say where in a graph, and not what."""
_NAME: Final = (
    r"(Horovod(Grouped)?(Allreduce|Allgather|Broadcast|Alltoall|Reducescatter|Join)|hvd_elastic_ext\.(?!core\b))"
)
"""Beginnings of names of Horovod's operations, and of those that we give to some: no script's, nor our errors'."""
_COLLECTIVE: Final = re.compile(rf"Horovod has been shut down|\b{_NAME}")
_FAILED_COLLECTIVE: Final = re.compile(
    rf"\{{\{{node ([^}}\n]*/)?{_NAME}[^/}}\n]*\}}\}}|__wrapped__{_NAME}|\[Op:{_NAME}"
    r"|Horovod has been shut down|\bHorovodInternalError: "
)
"""Where TensorFlow's text says of what it is: the operation of a graph, in double braces; one outside of graphs; or
what Horovod says, whatever the script calls the operation. It lists other operations, too, that got no input."""
_CODE: Final = re.compile(r"\{\{node [^}\n]*PyFunc")
"""That it is of Python code in a graph."""


def is_failure(error: BaseException) -> bool:
    """Whether the script caused the error. It did not for a lost peer, a change of hosts, or a requested exit."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, Exception) and not (names & _INTERRUPTS or names_lost_collective(error))


def follows_lost_peer(error: BaseException) -> bool:
    """Whether the error says that an operation with other ranks failed, or was raised because of one that says so."""
    return isinstance(error, Exception) and any(map(_says_peer_lost, _chain(error)))


def _says_peer_lost(error: BaseException) -> bool:
    if any(kind.__name__ in _LOST for kind in type(error).__mro__):
        return True
    if names_lost_collective(error):
        return True
    return isinstance(error, RuntimeError) and _LOST_WORDS.search(str(error)) is not None


def names_lost_collective(error: BaseException) -> bool:
    """Whether this is an error of TensorFlow's for a lost operation of Horovod's: of one itself; or, unless it is of
    the script's Python code, one that only lists such an operation while connections of the world have ended."""
    kind = type(error)
    if kind.__name__ not in _LOST_IN_TENSORFLOW or not kind.__module__.startswith("tensorflow."):
        return False
    text = str(error)
    if _FAILED_COLLECTIVE.search(text):
        return True
    if _CODE.search(text):
        return False
    says_lost = _LOST_WORDS.search(text)
    if says_lost and "gloo" in says_lost[0]:
        return True  # others' connections are closed, too, such as one that data comes over
    return bool(says_lost or _COLLECTIVE.search(text)) and HOROVOD_FENCE.is_broken()


def text_of(error: BaseException) -> str:
    """The text of an error in one line. TensorFlow's have a line for each function: of a lost collective, only the
    operation that failed; of another error in a graph, only what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__module__.startswith("tensorflow."):
        lost = names_lost_collective(error)
        found = [line for line in lines if lost and _COLLECTIVE.search(line) and not line.startswith("File ")]
        lines = found[:1] or [line for line in lines if not line.startswith(_NOT_SAID)][:1] or lines[:1]
    return " ".join(" ".join(lines).split()).removesuffix(" defined at (most recent call last):")


def line_of(error: BaseException) -> str:
    """The type and the message of an error, in one line."""
    return _line(error)


def describe(error: BaseException) -> dict[str, Any]:
    """Return the fields ``error``, ``traceback`` and ``digest`` of the message."""
    return {
        "error": _line(error),
        "traceback": shortened("".join(_traceback_of(error).format())),
        "digest": digest(error),
    }


def for_the_user(error: BaseException) -> str | None:
    """Return the traceback of a usage error of this package, down to the user's own line; None for other errors."""
    return "".join(_traceback_of(error).format()) if isinstance(error, Permanent) else None


def _traceback_of(error: BaseException) -> traceback.TracebackException:
    found = traceback.TracebackException.from_exception(error)
    if isinstance(error, Permanent):
        whole = traceback.StackSummary.from_list(found.stack)
        if not _cut(found):  # all frames are of this package
            found.stack = whole
    return found


def _cut(found: traceback.TracebackException) -> bool:
    """Remove frames of this package, and causes without user code. Return False if there is no user code at all."""
    inner = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    if inner is None or not _cut(inner):
        found.__cause__ = found.__context__ = None
        inner = None
    own = [at for at, frame in enumerate(found.stack) if _is_the_users(frame.filename)]
    shown = found.stack[: own[-1] + 1] if own else []
    found.stack = traceback.StackSummary.from_list([one for one in shown if not one.filename.startswith(_OURS)])
    return bool(own) or inner is not None


def _is_the_users(filename: str) -> bool:
    """Whether a file belongs neither to this package nor to the libraries that it calls."""
    installed = next((folder for folder in _INSTALLED if folder in filename), None)
    if installed is None:
        return not filename.startswith((_OURS, _PYTHON, "<frozen "))
    return not filename.startswith(_OURS) and filename.partition(installed)[2].partition("/")[0] not in _LIBRARIES


def digest(error: BaseException) -> str:
    """Hash a traceback without its message, so that the same mistake gives the same digest on all ranks."""
    whole = hashlib.blake2b(digest_size=8)
    for link in _chain(error):
        whole.update(f"{type(link).__module__}.{type(link).__qualname__}\n".encode())
        for frame in traceback.extract_tb(link.__traceback__):
            # Only the file name: hosts may keep the script in different folders.
            whole.update(f"{PurePath(frame.filename).name}:{frame.lineno}:{frame.name}\n".encode())
    return whole.hexdigest()


def shortened(text: str) -> str:
    """Return at most :data:`LONGEST` characters of ``text``, and mark the gap."""
    if not text.isascii():
        text = text.encode("ascii", "replace").decode()  # in JSON, other characters take six bytes each
    if len(text) <= LONGEST:
        return text
    gap = "\n[...]\n"
    return text[:_BEGINNING] + gap + text[len(text) - (LONGEST - _BEGINNING - len(gap)) :]


def _line(error: BaseException) -> str:
    text = text_of(error)
    name = type(error).__qualname__
    return (f"{name}: {text}" if text else name)[:1000]


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _CHAIN:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
