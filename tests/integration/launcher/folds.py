"""Cross-validation, or pretraining and fine-tuning, as people write them: one training call after the other.

Each rank has the same data, so the numbers are those of one process alone. In the last call a world of one waits for a
second process: whoever was killed before has to catch up with all calls that are over.
"""

import copy
import os
import sys
import time

import horovod.torch as hvd
import torch

if os.environ.get("USE", "ours") == "ours":
    import hvd_elastic_ext.torch as elastic
else:
    elastic = hvd.elastic

EPOCHS = 30


def optimizer_of(net):
    plain = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    return hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())


@elastic.run
def fit(state, net, optimizer, call, is_last):
    while state.epoch < EPOCHS:
        if is_last and hvd.size() < int(os.environ.get("SIZE", "2")):
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
    return {"sum": sum(p.double().sum().item() for p in net.parameters()), "bias": net[-1].bias.detach()}


def report(call, value, drawn):
    bias = ",".join(f"{each:.9f}" for each in value["bias"])
    print(f"rank {hvd.rank()} call {call} result {value['sum']:.9f} {bias} drawn {drawn}", flush=True)


def train(call, net, is_last):
    optimizer = optimizer_of(net)
    state = elastic.TorchState(model=net, optimizer=optimizer, epoch=0)
    print(f"rank {hvd.rank()} pid {os.getpid()} begins call {call}", flush=True)
    value = fit(state, net, optimizer, call, is_last)
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


hvd.init()
{"folds": cross_validate, "tune": pretrain_and_tune}[sys.argv[1]]()
print("done", flush=True)
