"""``mixed.py ours|stock ours|stock BATCHES``: the given State under the given loop."""

import sys
import time

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as ours
from hvd_elastic_ext.worker.sync.exchange import fingerprint

choose = {"ours": ours, "stock": hvd.elastic}
State, run = choose[sys.argv[1]].TorchState, choose[sys.argv[2]].run


@run
def train(state, batches):
    print("world of", hvd.size(), flush=True)
    while state.batch < batches:
        state.optimizer.zero_grad()
        state.model(torch.ones(1, 4)).sum().backward()
        state.optimizer.step()
        state.batch += 1
        time.sleep(0.05)
        state.commit()


hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
train(State(model=model, optimizer=optimizer, batch=0), int(sys.argv[3]))
print("done", fingerprint(model.state_dict()), flush=True)
