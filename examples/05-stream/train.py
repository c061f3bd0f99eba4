"""Handwritten digits read from shards that can only be read in order.

hvd-elastic run --min-np 1 --hosts-file hosts train.py
"""

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import hvd_elastic_ext.torch as elastic

SHARD = 100
"""Records in a shard."""

parser = argparse.ArgumentParser(description="Handwritten digits from text shards.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="make each step slower")
parser.add_argument("--data", type=Path, default=Path("shards"), help="folder of the shards; filled if it is missing")
args = parser.parse_args()


def write_shards(folder: Path) -> None:
    """Write the digits as lines of text: label, then 64 pixels. Several processes may do it at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    lines = [" ".join(map(str, map(int, (label, *row)))) for label, row in zip(digits.target, digits.data, strict=True)]
    for number, start in enumerate(range(0, len(lines), SHARD)):
        path = folder / f"{number:03}.txt"
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_text("\n".join(lines[start : start + SHARD]) + "\n")
        whole.rename(path)


def records(shard: Path, start: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Records of a shard, from number ``start`` on."""
    with shard.open() as lines:
        for line in itertools.islice(lines, start, None):
            label, *pixels = map(int, line.split())
            yield torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(label)


elastic.init()
torch.set_num_threads(1)
torch.manual_seed(0)
write_shards(args.data)
shards = sorted(args.data.glob("*.txt"))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = elastic.wrap(torch.optim.Adam(model.parameters(), lr=0.002), model.named_parameters())
stream = elastic.ElasticStream(shards, records, seed=0)
state = elastic.TorchState(model=model, optimizer=optimizer, stream=stream, epoch=0, batch=0, loss=0.0)


@elastic.run
def train(state: elastic.TorchState) -> None:
    state.stream.measure()  # the lengths of the shards, once in a job
    loader = state.stream.loader(batch_size=32)
    while state.epoch < args.epochs:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            time.sleep(args.step_delay)
            state.loss = loss.item()  # an epoch that ends at the commit has no batch left after a roll-back
            state.batch += 1
            state.stream.record_batch(state.batch, len(labels))
            state.commit()
        if elastic.rank() == 0:
            workers = elastic.size()
            print(f"epoch {state.epoch + 1}/{args.epochs}  loss {state.loss:.4f}  {workers} workers", flush=True)
        state.epoch += 1
        state.batch = 0
        state.stream.set_epoch(state.epoch)


train(state)
