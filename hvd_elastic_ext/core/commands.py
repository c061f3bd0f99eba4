"""Command lines that start agents and other programs of this package. Pure.

``python -m`` puts the current directory first on the path, and an agent runs in
the job's directory. So Python would run a ``json.py`` there instead of its own:
one of the job, or one that another user has left in ``/tmp``. The user's training
script still finds its own directory as usual.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Final

AGENT_MODULE: Final = "hvd_elastic_ext.agent"
RECEIVER_MODULE: Final = "hvd_elastic_ext.io.code.receive"
"""The program that brings code to a host, and then becomes its agent."""
HAS_CODE, WANTS_CODE = "hvd-elastic-code-is-there", "hvd-elastic-code-is-wanted"
"""The answers of that program: the host has the code, or needs it."""

_MODULE: Final = "import sys; sys.path[0] or sys.path.pop(0); import runpy; runpy.run_module({!r}, run_name='__main__')"
_STUB: Final = (
    "import sys; sys.path[0] or sys.path.pop(0); "
    f"from {AGENT_MODULE}.__main__ import main; sys.exit(main())"
)  # fmt: skip


_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL | re.ASCII)


def leading_variables(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split off the variables before a program, as in ``LR=1 python train.py``: horovodrun runs commands by ``env``,
    which reads them so.
    """
    found: dict[str, str] = {}
    for number, word in enumerate(words):
        pair = _ASSIGNMENT.fullmatch(word)
        if pair is None:
            return found, tuple(words[number:])
        found[pair[1]] = pair[2]
    return found, ()


def agent_command(python: str, *, version: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """Return the words that start an agent with the interpreter ``python`` of this ``version``."""
    if version >= (3, 11):
        return [python, "-P", "-m", AGENT_MODULE]
    # Older versions do not have -P. (Newer versions import modules before they run a -c: too early for the stub.)
    return [python, "-c", _STUB]


def module_command(python: str, module: str, *, version: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """Return the words that run a module of this package, in any working directory."""
    return [python, "-P", "-m", module] if version >= (3, 11) else [python, "-c", _MODULE.format(module)]


def is_agent(words: Sequence[str]) -> bool:
    """Whether a process that was started with these words is an agent, or on the way to becoming one.

    Forks of an agent have the same words.
    """
    return any(pair in (("-m", AGENT_MODULE), ("-c", _STUB)) for pair in itertools.pairwise(words))


def socket_name(host: str) -> str:
    """Return the name of the socket file of the agent of ``host``, in the folder of its job."""
    return file_name(host) + ".sock"


def job_mark(key: bytes) -> str:
    """Return the suffix of a job's agent folder. It is different for each key, and does not reveal the key."""
    return hmac.new(key, b"folder", hashlib.sha256).hexdigest()[:16]


def file_name(word: str) -> str:
    """Return the name of a job or host as a file name."""
    plain = word.replace("-", "").replace("_", "").replace(".", "").isalnum() and word.isascii()
    if plain and len(word) <= 100 and word[0] != ".":
        return word
    return "=" + hashlib.sha256(word.encode()).hexdigest()  # no plain name begins with it
