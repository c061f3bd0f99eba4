"""The launcher of a function's job. It ends when the process that waits for it has ended in any way: a notebook's
kernel that is started again leaves no job behind, and no files."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys

from hvd_elastic_ext.io import process_tree


def main(parent: int, folder: str) -> None:
    """Run ``hvd-elastic`` with the remaining words of ``sys.argv``."""
    process_tree.die_with_parent(signal.SIGTERM)
    try:
        if os.getppid() == parent:  # else it ended before the line above could take effect
            runpy.run_module("hvd_elastic_ext.cli", run_name="__main__", alter_sys=True)
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _, _parent, _folder, *sys.argv[1:] = sys.argv
    main(int(_parent), _folder)
