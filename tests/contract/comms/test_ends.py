"""The end of a process in a world of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import atexit, sys
import torch, torch.distributed as dist
from hvd_elastic_ext.worker.comms.torch_distributed import TorchDistributedComms

begun = []
atexit.register(lambda: print("completed", sum(work.is_completed() for work in begun), "of", len(begun)))  # runs last
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
TorchDistributedComms()
for _ in range(20):
    begun.append(dist.all_gather([torch.empty(1 << 22)], torch.ones(1 << 22), async_op=True))
"""


def test_a_process_ends_after_the_threads_of_gloo_are_done_with_the_tensors_of_the_script(tmp_path: Path) -> None:
    """Python ends a thread that needs the interpreter meanwhile, and that aborts the process."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "store")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "completed 20 of 20\n"), done.stderr
