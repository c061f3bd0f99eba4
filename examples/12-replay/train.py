"""Handwritten digits, with dropout: steps that a loss has cost are executed again as they were.

hvd-elastic run --replay --min-np 1 --hosts-file hosts train.py
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic

parser = argparse.ArgumentParser(description="Handwritten digits, whose lost steps are executed again.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="make each step slower")
args = parser.parse_args()

elastic.init()
torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
optimizer = elastic.wrap(torch.optim.Adam(model.parameters(), lr=0.002), model.named_parameters())
sampler = elastic.ElasticSampler(data)
state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, loss=0.0)


@elastic.run
def train(state: elastic.TorchState) -> None:
    batches = elastic.GlobalBatches(state.sampler, 96)
    loader = DataLoader(data, batch_sampler=batches)
    while state.epoch < args.epochs:
        for step in batches.steps(loader):
            optimizer.zero_grad()
            for (images, labels), weight in step:  # in a lost step also what was a lost worker's
                loss = nn.functional.cross_entropy(model(images), labels)
                (loss * weight).backward()
            optimizer.step()
            time.sleep(args.step_delay)
            state.loss = loss.item()  # an epoch that ends at the commit has no batch left after a roll-back
            state.batch += 1
            if state.batch % 10 == 0:  # a loss costs up to ten steps
                state.commit()
            else:
                state.check_host_updates()
        if elastic.rank() == 0:
            workers = elastic.size()
            print(f"epoch {state.epoch + 1}/{args.epochs}  loss {state.loss:.4f}  {workers} workers", flush=True)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)


train(state)
