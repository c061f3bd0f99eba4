"""Cross-validation in which a process is lost between two calls, or at the very end of one. See ``test_between_calls``.

Each rank has the same data, so the numbers are those of one process alone. A file in ``MARKS`` says that something has
happened once: processes wait for one another with them, so that the loss comes exactly there.
"""

import os
import signal
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

OWN = os.environ["USE"] == "ours" or os.environ.get("HVD_ELASTIC_ADOPT") == "1"
if os.environ["USE"] == "ours":
    import hvd_elastic_ext.torch as elastic
else:
    elastic = hvd.elastic

EPOCHS = 10
EXACT = {"dtype": torch.float64}  # the mean of three equal numbers is that number in each printed digit
MARKS = Path(os.environ["MARKS"])


def mark(name):
    (MARKS / name).touch()


def is_marked(name):
    return (MARKS / name).exists()


def wait_for(*names):
    while not all(map(is_marked, names)):
        time.sleep(0.005)


def die():
    """End as by a crash of the machine, once."""
    mark("lost")
    os.kill(os.getpid(), signal.SIGKILL)


def at_the_end(call):
    """Rank 0 goes on to call 3. Rank 1 loses rank 2 within call 2, and rolls back."""
    if call != 2 or is_marked("lost"):
        return
    if hvd.rank() == 1:
        mark("waits")
        hvd.allreduce(torch.zeros(1), name="nobody answers")
    elif hvd.rank() == 2:
        wait_for("waits", "ahead")
        die()


def between(call):
    """The script's own collectives. After call 1 the last rank is lost while the others are in one."""
    if call == 1 and not is_marked("lost") and sys.argv[1] in BETWEEN:
        dies = hvd.rank() == hvd.size() - 1
        mark(f"in-{hvd.rank()}")
        wait_for(*(f"in-{rank}" for rank in range(hvd.size())), *WAITS_FOR)
        if dies:
            time.sleep(0.2)  # the others are in the operation by then; if not, they lose the peer as soon as they are
            die()
    if sys.argv[1] in BETWEEN:
        BETWEEN[sys.argv[1]](call)


BETWEEN = {
    "allreduce": lambda call: hvd.allreduce(torch.ones(2), name=f"mean {call}"),
    "object": lambda call: hvd.broadcast_object({"call": call}, root_rank=0, name=f"told {call}"),
}
WAITS_FOR = sys.argv[2:]
"""Marks of the test, for which all wait before the loss."""


@elastic.run
def fit(state, net, optimizer, call, is_last):
    while state.epoch < EPOCHS:
        if is_last and hvd.size() < int(os.environ["SIZE"]) and not is_marked("enough"):
            time.sleep(0.05)
            state.check_host_updates()
            continue
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(call * 1000 + state.epoch), **EXACT) + call
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
        state.epoch += 1
        if not OWN:
            state.commit()  # it waits for all ranks
        if sys.argv[1] == "end" and state.epoch == EPOCHS:
            at_the_end(call)
        if OWN:
            state.commit()
    return {"sum": sum(p.double().sum().item() for p in net.parameters()), "bias": net[-1].bias.detach()}


def train(call, net, is_last):
    plain = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())
    state = elastic.TorchState(model=net, optimizer=optimizer, epoch=0)
    print(f"rank {hvd.rank()} pid {os.getpid()} begins call {call}", flush=True)
    if call == 3:
        mark("ahead")
    value = fit(state, net, optimizer, call, is_last)
    bias = ",".join(f"{each:.9f}" for each in value["bias"])
    # A process that joins in a call, as the new host may after the loss, has generators of its own from there on.
    drawn = torch.randperm(1000)[:2].tolist() if call == 1 and sys.argv[1] == "end" else "-"
    print(f"rank {hvd.rank()} call {call} result {value['sum']:.9f} {bias} drawn {drawn}", flush=True)


hvd.init()
for fold in range(3):
    torch.manual_seed(fold)
    train(fold + 1, torch.nn.Sequential(torch.nn.Linear(4, 1, **EXACT)), is_last=fold == 2)
    between(fold + 1)
print("done", flush=True)
