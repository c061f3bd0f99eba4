"""Handwritten digits by ranks that train alone and average every 16 steps: a lost worker costs the others no step.

hvd-elastic run --min-np 1 -H localhost:2 train.py
hvd-elastic run --min-np 1 -H localhost:2 train.py --diloco
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic

parser = argparse.ArgumentParser(description="Handwritten digits with averages every H steps.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--every", type=int, default=16, metavar="H", help="steps from one average to the next")
parser.add_argument("--diloco", action="store_true", help="an outer optimizer steps at each average")
parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="make each step slower")
args = parser.parse_args()

elastic.init()
torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)  # plain: nothing is averaged in a step
averaging = elastic.LocalSGD(optimizer, every=args.every)
if args.diloco:
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    averaging = elastic.DiLoCo(model, optimizer, outer, every=args.every)
sampler = elastic.ElasticSampler(data)
state = elastic.TorchState(
    model=model, optimizer=optimizer, averaging=averaging, sampler=sampler, epoch=0, batch=0, loss=0.0
)


@elastic.run
def train(state: elastic.TorchState) -> None:
    loader = DataLoader(data, batch_size=16, sampler=state.sampler)
    while state.epoch < args.epochs:
        state.sampler.set_epoch(state.epoch)
        for number, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            time.sleep(args.step_delay)
            state.loss = loss.item()
            state.batch += 1
            state.sampler.record_batch(number, len(images))
            state.commit()  # averages every 16 steps, and at the end of an epoch
        if elastic.rank() == 0:
            workers = elastic.size()
            print(f"epoch {state.epoch + 1}/{args.epochs}  loss {state.loss:.4f}  {workers} workers", flush=True)
        state.epoch += 1
        state.batch = 0


train(state)
