"""Handwritten digits on hosts of unlike speed: each worker's share of the global batch follows its measured speed.

hvd-elastic run --min-np 1 --hosts-file hosts train.py --slow 127.0.0.1
"""

import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic

parser = argparse.ArgumentParser(description="Handwritten digits on unlike hosts.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="make each step slower")
parser.add_argument("--slow", default="", metavar="HOST", help="a host that needs twice as long for a sample")
parser.add_argument("--sample-s", type=float, default=0.0005, metavar="SECONDS", help="time of a sample on the others")
args = parser.parse_args()

elastic.init()
torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = elastic.wrap(torch.optim.Adam(model.parameters(), lr=0.002), model.named_parameters())
sampler = elastic.ElasticSampler(data)
state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, loss=0.0)
sample_s = args.sample_s * (2 if os.environ.get("HOROVOD_HOSTNAME") == args.slow else 1)


@elastic.run
def train(state: elastic.TorchState) -> None:
    batches = elastic.GlobalBatches(state.sampler, 96, shares="measured")
    loader = DataLoader(data, batch_sampler=batches)
    while state.epoch < args.epochs:
        for step in batches.steps(loader):
            optimizer.zero_grad()
            for (images, labels), weight in step:  # this worker's share
                loss = nn.functional.cross_entropy(model(images), labels)
                (loss * weight).backward()
                time.sleep(sample_s * len(labels))  # as if this were a large model
            optimizer.step()
            time.sleep(args.step_delay)
            state.loss = loss.item()  # an epoch that ends at the commit has no batch left after a roll-back
            state.batch += 1
            state.commit()  # shares change here only
        if elastic.rank() == 0:
            workers = elastic.size()
            print(f"epoch {state.epoch + 1}/{args.epochs}  loss {state.loss:.4f}  {workers} workers", flush=True)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)


train(state)
