"""Three training calls, one after the other, with a pause after each step. Each rank has the same data."""

import os
import time

import torch

import hvd_elastic_ext.torch as elastic

STEPS = 20


@elastic.run
def fit(state, model, optimizer, call):
    while state.at < STEPS:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * call + state.at))
        optimizer.zero_grad()
        (model(x) - call).pow(2).mean().backward()
        optimizer.step()
        state.at += 1
        state.commit()
        print(f"rank {elastic.rank()} did step {state.at} of call {call}", flush=True)
        time.sleep(float(os.environ["PAUSE_S"]))
    return sum(each.double().sum().item() for each in model.parameters())


elastic.init()
for call in (1, 2, 3):
    torch.manual_seed(call)
    model = torch.nn.Linear(4, 1)
    optimizer = elastic.wrap(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), model.named_parameters())
    state = elastic.TorchState(model=model, optimizer=optimizer, at=0)
    print(f"rank {elastic.rank()} call {call} result {fit(state, model, optimizer, call):.9f}", flush=True)
