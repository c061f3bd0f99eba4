"""Handwritten digits with a spare beside the workers: one that is lost is replaced in the very next world.

hvd-elastic run --min-np 1 --hosts-file hosts --spares 1 train.py
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic

parser = argparse.ArgumentParser(description="Handwritten digits with a spare.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="make each step slower")
parser.add_argument("--load", type=float, default=5.0, metavar="SECONDS", help="how long the model takes to make")
args = parser.parse_args()

elastic.init()
torch.set_num_threads(1)
torch.manual_seed(0)
time.sleep(args.load)  # as if this were a large model: a spare has it behind it when it is called in
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = elastic.wrap(torch.optim.Adam(model.parameters(), lr=0.002), model.named_parameters())
sampler = elastic.ElasticSampler(data)
state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, loss=0.0)


@elastic.run  # a spare waits here
def train(state: elastic.TorchState) -> None:
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
        if elastic.rank() == 0:
            workers = elastic.size()
            print(f"epoch {state.epoch + 1}/{args.epochs}  loss {state.loss:.4f}  {workers} workers", flush=True)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)


train(state)
