"""Handwritten digits with Lightning: a callback commits after each batch.

pip install lightning
hvd-elastic run --engine torchrun --min-np 1 --hosts-file hosts train.py
"""

import argparse
import os
import time

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic

parser = argparse.ArgumentParser(description="Handwritten digits with Lightning.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="make each step slower")
args = parser.parse_args()


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.optimizer = torch.optim.Adam(self.parameters(), lr=0.002)  # the State needs it before fit() does

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer


class Commits(lightning.Callback):
    """Records each batch, commits, and counts epochs across worlds."""

    def __init__(self, state: elastic.TorchState) -> None:
        self.state = state

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        time.sleep(args.step_delay)
        self.state.batch += 1
        self.state.sampler.record_batch(self.state.batch, len(batch[1]))
        self.state.commit()  # also where changes of hosts are noticed

    def on_train_epoch_end(self, trainer, module) -> None:
        next_epoch(self.state)


def next_epoch(state: elastic.TorchState) -> None:
    if elastic.rank() == 0:
        print(f"epoch {state.epoch + 1}/{args.epochs}  {elastic.size()} workers", flush=True)
    state.epoch += 1
    state.batch = 0
    state.sampler.set_epoch(state.epoch)


elastic.init()  # also starts torch.distributed, which Lightning then uses
torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
module = Digits()
sampler = elastic.ElasticSampler(data)
state = elastic.TorchState(model=module.net, optimizer=module.optimizer, sampler=sampler, epoch=0, batch=0)


@elastic.run
def train(state: elastic.TorchState) -> None:
    if len(state.sampler) == 0:  # the last commit was that of an epoch's last batch, and Lightning skips empty epochs
        next_epoch(state)
    trainer = lightning.Trainer(
        max_epochs=args.epochs - state.epoch,
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        callbacks=[Commits(state)],
        use_distributed_sampler=False,  # ElasticSampler deals
        enable_checkpointing=False,  # the launcher writes them
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=32, sampler=state.sampler))


train(state)
