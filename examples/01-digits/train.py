"""Train a small convolutional network on handwritten digits, on any number of workers.

Alone:      python train.py
Elastic:    hvd-elastic run -np 2 --min-np 1 --hosts-file hosts train.py
Horovod's:  horovodrun -np 2 --min-np 1 --host-discovery-script ./discover_hosts.sh python train.py
Torch's:    torchrun --nproc-per-node 2 --max-restarts 3 train.py
MPI:        mpirun -np 2 python train.py

Each step uses the same global batch for any number of workers, so the loss curve is the same.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic

TEST_IMAGES = 360  # of 1797; the same ones on every worker and in every run


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Elastic training on scikit-learn's 8x8 handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples in a step, of all workers together")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--commit-every", type=int, default=5, metavar="BATCHES")
    parser.add_argument(
        "--step-delay",
        type=seconds,
        default=[0.0],
        metavar="SECONDS[,SECONDS...]",
        help="make each step slower; with one worker, with two, ...",
    )
    parser.add_argument("--hurry", type=Path, metavar="FILE", help="no more delay once this file exists")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the result there as JSON")
    return parser.parse_args()


def seconds(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Split the digits in a training and a test set, always in the same way."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),  # after a roll-back each worker draws the same again
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


@elastic.run
def train(state: elastic.TorchState, data: TensorDataset, args: argparse.Namespace) -> None:
    """Train from the progress in ``state``; called again whenever the set of workers changes."""
    batches = elastic.GlobalBatches(state.sampler, args.batch_size)
    loader = DataLoader(data, batch_sampler=batches)
    while state.epoch < args.epochs:
        started = time.monotonic()
        for step in batches.steps(loader):
            state.optimizer.zero_grad()
            for (images, labels), weight in step:  # this worker's share
                loss = F.cross_entropy(state.model(images), labels)
                (loss * weight).backward()
            state.optimizer.step()
            if not (args.hurry and args.hurry.exists()):
                time.sleep(args.step_delay[min(elastic.size(), len(args.step_delay)) - 1])

            # All progress belongs in the state, before the commit.
            state.loss = loss.item()
            state.steps += 1
            if state.steps % args.commit_every == 0:
                state.commit()  # also checks for changed hosts
            else:
                state.check_host_updates()

        if elastic.rank() == 0:
            seconds = time.monotonic() - started
            print(
                f"epoch {state.epoch + 1}/{args.epochs}  loss {state.loss:.4f}  "
                f"{elastic.size()} workers  {seconds:.1f} s",
                flush=True,
            )
        state.epoch += 1
        state.scheduler.step()
        state.sampler.set_epoch(state.epoch)
        state.commit()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)  # several workers share this machine
    elastic.init()
    torch.manual_seed(args.seed)
    train_data, test_data = load_data()

    model = build_model()
    torch.manual_seed(args.seed + elastic.rank())  # from here on each worker has its own random numbers
    optimizer = elastic.wrap(
        torch.optim.AdamW(model.parameters(), lr=args.lr), named_parameters=model.named_parameters()
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    sampler = elastic.ElasticSampler(train_data, seed=args.seed)
    state = elastic.TorchState(
        model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, epoch=0, steps=0, loss=0.0
    )
    train(state, train_data, args)

    if elastic.rank() == 0:
        result = accuracy(model, test_data)
        print(f"test accuracy {result:.4f} after {state.epoch} epochs", flush=True)
        if args.report:
            report = {"accuracy": result, "epochs": state.epoch, "steps": state.steps, "size": elastic.size()}
            args.report.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
