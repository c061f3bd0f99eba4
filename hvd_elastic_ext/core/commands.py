"""How a host's agent is started, and other programs of ours. Pure.

``python -m`` puts the current directory first on the path, and an agent runs in
the job's: a ``json.py`` there, the job's own or one that somebody else has left
in ``/tmp``, would be run instead of Python's. The training script is the user's
business, and finds its directory as always.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import sys
from collections.abc import Sequence
from typing import Final

AGENT_MODULE: Final = "hvd_elastic_ext.agent"
RECEIVER_MODULE: Final = "hvd_elastic_ext.io.code.receive"
"""Brings code to a host, and becomes its agent."""
HAS_CODE, WANTS_CODE = "hvd-elastic-code-is-there", "hvd-elastic-code-is-wanted"
"""Lines by which it says whether the code is there."""

_MODULE: Final = "import sys; sys.path[0] or sys.path.pop(0); import runpy; runpy.run_module({!r}, run_name='__main__')"
_STUB: Final = (
    "import sys; sys.path[0] or sys.path.pop(0); "
    f"from {AGENT_MODULE}.__main__ import main; sys.exit(main())"
)  # fmt: skip


def agent_command(python: str, *, version: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """The words that start an agent by the interpreter ``python``, which is of that ``version``."""
    if version >= (3, 11):
        return [python, "-P", "-m", AGENT_MODULE]
    # Older ones do not know -P. (Newer ones look for modules of their own before they run a -c.)
    return [python, "-c", _STUB]


def module_command(python: str, module: str, *, version: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """The words that run a module of ours, from wherever they are run."""
    return [python, "-P", "-m", module] if version >= (3, 11) else [python, "-c", _MODULE.format(module)]


def is_agent(words: Sequence[str]) -> bool:
    """Whether a process that was started with these words is an agent, or on the way to becoming one.

    Whatever an agent forks has the same words.
    """
    return any(pair in (("-m", AGENT_MODULE), ("-c", _STUB)) for pair in itertools.pairwise(words))


def socket_name(host: str) -> str:
    """The name of the file at which the agent of ``host`` listens, in the folder of its job."""
    return file_name(host) + ".sock"


def job_mark(key: bytes) -> str:
    """The end of the name of a job's folder of agents: it differs for different keys, and does not reveal them."""
    return hmac.new(key, b"folder", hashlib.sha256).hexdigest()[:16]


def file_name(word: str) -> str:
    """The name of a job or host as that of a file."""
    plain = word.replace("-", "").replace("_", "").replace(".", "").isalnum() and word.isascii()
    if plain and len(word) <= 100 and word[0] != ".":
        return word
    return "=" + hashlib.sha256(word.encode()).hexdigest()  # no plain name begins with it
