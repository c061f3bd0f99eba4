"""Reports the imports of a training process, so that the next process can start with these imports done.

Standard library only: the import hook loads this into every training script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.messages.slot_protocol import AUTO, PRELOAD
from hvd_elastic_ext.worker.process.link import Link

LEFT_OUT: Final = frozenset({"__main__", "horovod", "hvd_elastic_ext", "kubeai", "sitecustomize", "usercustomize"})
"""Modules that are not imported ahead: with a link they are patched at their import, or they run at each start."""
PREFIX: Final = "HVD_ELASTIC_"
DEVICES: Final = "CUDA_VISIBLE_DEVICES"
TOGETHER: Final = 500
"""Most names in one message: a link accepts lines of 64 KiB."""


class Imports(NamedTuple):
    """The modules of a training process."""

    ahead: list[str]
    """Those of the interpreter and its installed packages, in order."""
    own: list[str]
    """Top-level names of the others."""


def imports_of(modules: Mapping[str, ModuleType | None], folders: Iterable[str]) -> Imports:
    """Divide ``modules`` (``sys.modules``) into those below ``folders`` and the script's own. Pure."""
    below = tuple(f"{folder}{os.sep}" for folder in folders if folder)
    ahead, own = [], dict[str, None]()
    for name, module in modules.items():
        spec, top = getattr(module, "__spec__", None), name.partition(".")[0]
        origin = getattr(spec, "origin", None)
        if top in LEFT_OUT or getattr(spec, "name", None) != name or origin in (None, "built-in", "frozen"):
            continue
        if str(origin).startswith(below):
            ahead.append(name)
        else:
            own[top] = None
    return Imports([name for name in ahead if name.partition(".")[0] not in own], list(own))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changed variables of an environment by name, None for a removed one. Without our own variables, and
    without CUDA's, which nothing reads before CUDA is initialised. Pure."""
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return {name: after.get(name) for name in names if name != DEVICES and not name.startswith(PREFIX)}


def at_start() -> dict[str, str]:
    """The environment that this process was started with."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0")]
    return {name: value for name, _, value in entries if name}


def installed() -> list[str]:
    """Folders of the standard library and of installed packages."""
    import site
    import sysconfig

    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return list(dict.fromkeys([*paths, *site.getsitepackages(), site.getusersitepackages()]))


def messages_of(found: Imports, changed: Mapping[str, str | None], pid: int) -> Iterator[dict[str, Any]]:
    """Return the messages about the imports for the link; the last one is marked ``complete``. Pure."""
    for first in range(0, max(1, len(found.ahead)), TOGETHER):
        last = {} if first + TOGETHER < len(found.ahead) else {"own": found.own, "env": changed, "complete": True}
        yield {"pid": pid, "modules": found.ahead[first : first + TOGETHER], **last}


class Report:
    """Sends the report to the agent once, if the agent asks for it and the hook is loaded: without the hook, the
    agent's interpreter would run the script instead of waiting.
    """

    def __init__(self, link: Link, environ: Mapping[str, str]) -> None:
        self._link = link
        self._environ = environ
        self._changed: dict[str, str | None] | None = None

    def at_init(self) -> None:
        """Record what the script and its imports have changed in the environment: later changes are our own."""
        hooked = any(hasattr(finder, "hvd_elastic_hook") for finder in sys.meta_path)
        if self._link.connected and hooked and self._environ.get(PRELOAD) == AUTO:
            self._changed = changes(at_start(), self._environ)

    def at_first_step(self) -> None:
        """Report the present imports: a new optimizer imports more of torch."""
        changed, self._changed = self._changed, None
        if changed is not None:
            for message in messages_of(imports_of(dict(sys.modules), installed()), changed, os.getpid()):
                self._link.send("imported", **message)
