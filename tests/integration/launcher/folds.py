"""Cross-validation, or pretraining and fine-tuning, as people write them: one training call after the other.

Each rank has the same data, so the numbers are those of one process alone. In the last call a world of one waits for a
second process: whoever was killed before has to catch up with all calls that are over.
"""

import copy
import os
import sys
import time

import torch

USE = os.environ.get("USE", "ours")
"""Horovod with our State and loop, or with its own ("stock"); or what the launcher's engine uses ("engine")."""

if USE == "engine":
    import hvd_elastic_ext.torch as elastic

    world, wrap = elastic, elastic.wrap
else:
    import horovod.torch as hvd

    world, wrap = hvd, hvd.DistributedOptimizer
    if USE == "stock":
        elastic = hvd.elastic
    else:
        import hvd_elastic_ext.torch as elastic

EPOCHS = 30


def optimizer_of(net):
    plain = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    return wrap(plain, named_parameters=net.named_parameters())


@elastic.run
def fit(state, net, optimizer, call, is_last):
    while state.epoch < EPOCHS:
        if is_last and world.size() < int(os.environ.get("SIZE", "2")):
            time.sleep(0.05)
            state.check_host_updates()
            continue
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(call * 1000 + state.epoch)) + call
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
        state.epoch += 1
        state.commit()
        time.sleep(0.03)
    unfit = {"unfit": fit} if os.environ.get("UNFIT") else {}  # a function is not a value that can be kept
    return {**unfit, "sum": sum(p.double().sum().item() for p in net.parameters()), "bias": net[-1].bias.detach()}


def averaged(number):
    """The mean over all ranks, by a collective of the engine's own library, as people write it after a fold."""
    if USE != "engine":
        return number
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        from mpi4py import MPI

        return MPI.COMM_WORLD.allreduce(number) / MPI.COMM_WORLD.size
    total = torch.tensor([number], dtype=torch.float64)
    torch.distributed.all_reduce(total)
    return total.item() / torch.distributed.get_world_size()


def report(call, value, drawn):
    bias = ",".join(f"{each:.9f}" for each in value["bias"])
    print(f"rank {world.rank()} call {call} result {value['sum']:.9f} {bias} drawn {drawn}", flush=True)


def train(call, net, is_last):
    optimizer = optimizer_of(net)
    state = elastic.TorchState(model=net, optimizer=optimizer, epoch=0)
    print(f"rank {world.rank()} pid {os.getpid()} begins call {call}", flush=True)
    value = fit(state, net, optimizer, call, is_last)
    value["sum"] = averaged(value["sum"])
    # A process that joins in a call has random generators of its own from there on.
    report(call, value, torch.randperm(1000)[:2].tolist() if call == 1 else "-")
    return state.epoch, net


def cross_validate():
    for fold in range(3):
        torch.manual_seed(fold)
        train(fold + 1, torch.nn.Sequential(torch.nn.Linear(4, 1)), fold == 2)


def pretrain_and_tune():
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(4, 4))
    train(1, body, False)
    tuned = torch.nn.Sequential(copy.deepcopy(body[0]), torch.nn.Linear(4, 2))
    train(2, tuned, True)


world.init()
{"folds": cross_validate, "tune": pretrain_and_tune}[sys.argv[1]]()
print("done", flush=True)
