"""The training of ``ddp_trainee.py`` with torchft: the loop of its ``train_ddp.py``. A stamp is a step that it has
committed.

    torchft_trainee.py STAMPS SECONDS
"""

from __future__ import annotations

import os
import sys
import time

import torch

from benchmarks.scripts.torchft_hosts import of_this_group

STAMPS, LIMIT_S = sys.argv[1], float(sys.argv[2])
PAUSE_S = 0.02


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    group = of_this_group(model, torch.optim.SGD(model.parameters(), lr=0.01))
    manager, stamps = group.manager, os.open(STAMPS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        group.optimizer.zero_grad()
        group.ddp(torch.ones(1, 4)).sum().backward()
        before = manager.current_step()
        group.optimizer.step()
        if manager.current_step() > before:
            who = f"{os.getpid()} {group.number} {manager.num_participants()} {manager.current_step()} {group.host}"
            os.write(stamps, f"{time.monotonic():.6f} {who}\n".encode())
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
