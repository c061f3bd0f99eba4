"""A script written for plain ``hvd.elastic``, but for the State: our State under Horovod's own loop."""

import sys
import time

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic


@hvd.elastic.run
def train(state, batches):
    while state.batch < batches:
        state.optimizer.zero_grad()
        state.model(torch.ones(1, 4)).sum().backward()
        state.optimizer.step()
        state.batch += 1
        time.sleep(0.05)
        if state.batch % 10 == 0:
            state.commit()
        else:
            state.check_host_updates()
    return state.fingerprint()


hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters())
print("done", train(elastic.TorchState(model=model, optimizer=optimizer, batch=0), int(sys.argv[1])), flush=True)
