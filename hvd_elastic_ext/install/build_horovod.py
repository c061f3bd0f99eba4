"""``hvd-elastic build-horovod``: build a wheel of Horovod for this Python, and its torch, its TensorFlow, or both."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hvd_elastic_ext.install import files

RUN: Final = """import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("tooling.build_horovod", run_name="__main__", alter_sys=True)"""


def main(argv: Sequence[str]) -> int:
    """Become the tool of a clone's ``scripts/build-horovod``, for the Python that runs this command by default."""
    scripts = files.find("scripts/tooling/build_horovod.py").parent.parent
    chosen = any(word.partition("=")[0] == "--python" for word in argv)
    arguments = [*argv] if chosen else ["--python", sys.executable, *argv]
    named = {"INVOKED_FROM": str(Path.cwd()), "INVOKED_AS": "hvd-elastic build-horovod"}
    # Its own process, without PYTHON* variables and the user's site: it must not import what this one has imported.
    command = [sys.executable, "-E", "-s", "-B", "-c", RUN, os.fspath(scripts), *arguments]
    os.execve(sys.executable, command, {**os.environ, **named})  # noqa: S606 (our own tool)
