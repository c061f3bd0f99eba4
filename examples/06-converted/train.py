"""The training of plain.py, elastic: docs/convert-your-script.md goes through the differences.

hvd-elastic run -np 2 --min-np 1 --hosts-file hosts --checkpoint-every auto train.py
"""

import argparse
import io
import json
import math
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic

GLOBAL_BATCH = 64  # samples in an optimizer step of all workers together, however many there are
LARGEST = 16  # samples in a backward pass of one worker: what its memory holds
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def load_data() -> tuple[TensorDataset, TensorDataset]:
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, rest = order[:360], order[360:]
    return TensorDataset(images[rest], labels[rest]), TensorDataset(images[test], labels[test])


def validate(model: nn.Module, data: TensorDataset) -> float:
    """The accuracy over all workers: each looks at its share."""
    images, labels = (part[hvd.rank() :: hvd.size()].to(DEVICE) for part in data.tensors)
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    model.train()
    return hvd.allreduce(right, name="right", op=hvd.Sum).item() / len(data)


def write(path: Path, content: bytes) -> None:
    """Replace a file as a whole: rank 0 may end at any moment, and another one goes on."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)


def publish(state: elastic.TorchState, out: Path) -> None:
    """Write rank 0's files from the State, whole. A second call writes the same."""
    write(out / "log.jsonl", "".join(json.dumps(line) + "\n" for line in state.history).encode())
    if state.best_epoch == state.epoch:  # the epoch that has just ended is the best, so these are its weights
        weights = io.BytesIO()
        torch.save(state.model.state_dict(), weights)
        write(out / "best.pt", weights.getvalue())


@elastic.run
def train(state: elastic.TorchState, train_data: TensorDataset, test_data: TensorDataset, args) -> None:
    model, optimizer, scaler = state.model, state.optimizer, state.scaler
    batches = elastic.GlobalBatches(state.sampler, GLOBAL_BATCH, largest=LARGEST)
    optimizer.set_backward_passes_per_step(batches.passes)  # another number in each world
    loader = DataLoader(train_data, batch_sampler=batches)
    if hvd.rank() == 0 and state.history and state.batch == 0:
        publish(state, args.out)  # the rank 0 before may have been lost between the commit and its files
    while state.epoch < args.epochs:
        for step in batches.steps(loader):
            for (images, labels), weight in step:
                with torch.autocast(DEVICE, dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE))
                scaler.scale(loss * weight).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            state.scheduler.step()
            state.loss = loss.item()
            state.batch += 1
            state.commit()
            time.sleep(args.step_delay)

        # A worker that is lost from here on costs no step: the loop above has nothing left, and validation is repeated.
        accuracy = validate(model, test_data)
        state.epoch += 1
        if accuracy > max((line["accuracy"] for line in state.history), default=0.0):
            state.best_epoch = state.epoch
        state.history = [*state.history, {"epoch": state.epoch, "accuracy": accuracy}]
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.save()  # a commit that looks for no hosts: what follows is done before the world may change
        if hvd.rank() == 0:
            print(
                f"epoch {state.epoch}/{args.epochs}  loss {state.loss:.4f}  {hvd.size()} workers  "
                f"accuracy {accuracy:.4f}",
                flush=True,
            )
            publish(state, args.out)
        state.check_host_updates()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="in place of a larger model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    hvd.init()
    train_data, test_data = load_data()

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.002), named_parameters=model.named_parameters()
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.01, total_steps=args.epochs * math.ceil(len(train_data) / GLOBAL_BATCH)
    )
    state = elastic.TorchState(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=torch.amp.GradScaler(DEVICE, enabled=DEVICE == "cuda"),
        sampler=elastic.ElasticSampler(train_data),
        epoch=0,
        batch=0,
        loss=0.0,
        history=[],
        best_epoch=0,
    )
    train(state, train_data, test_data, args)


if __name__ == "__main__":
    main()
