"""A script for Alibaba's SDK, without our package: checks before every batch; rank 0 saves; all ranks end with -1."""

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import kubeai.elastic as kubeai
import torch

CHECKPOINT = Path("checkpoint.pt")
BATCHES = int(sys.argv[1])


def save_checkpoint(state):
    torch.save({"model": state.model.state_dict(), "batch": state.batch}, CHECKPOINT)
    print("saved", state.batch, flush=True)


hvd.init()
kubeai.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
batch = 0
if CHECKPOINT.exists() and hvd.rank() == 0:
    found = torch.load(CHECKPOINT)
    model.load_state_dict(found["model"])
    batch = found["batch"]
    print("resumed", batch, flush=True)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=batch)


@hvd.elastic.run
def train(state):
    while state.batch < BATCHES:
        if not kubeai.check_alive():
            if hvd.rank() == 0:
                save_checkpoint(state)
            sys.exit(-1)
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.batch += 1
        state.commit()
        Path(f"batch-{hvd.rank()}").write_text(str(state.batch))
        time.sleep(0.1)  # much longer than the time between the ranks' notices that they must leave


train(state)
print("done", state.batch, flush=True)
