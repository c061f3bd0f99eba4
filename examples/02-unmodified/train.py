"""A plain script for Horovod's elastic mode, which knows nothing of hvd-elastic-ext.

hvd-elastic run --adopt --min-np 1 --hosts-file hosts --checkpoint-every 20s train.py
"""

import argparse
import time

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="Handwritten digits, with horovod.torch alone.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="make each step slower")
args = parser.parse_args()

hvd.init()
torch.set_num_threads(1)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(data)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, loss=0.0)


@hvd.elastic.run
def train(state):
    loader = DataLoader(data, batch_size=32, sampler=state.sampler)
    while state.epoch < args.epochs:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            time.sleep(args.step_delay)
            state.loss = loss.item()  # an epoch that ends at the commit has no batch left after a roll-back
            state.batch += 1
            state.sampler.record_batch(state.batch, len(labels))
            state.commit()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch + 1}/{args.epochs}  loss {state.loss:.4f}  {hvd.size()} workers", flush=True)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)


train(state)
