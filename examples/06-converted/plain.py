"""A plain Horovod script, as it was before it became elastic; train.py beside it is the same training, elastic.

horovodrun -np 2 python plain.py
"""

import argparse
import json
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ACCUMULATE = 2  # backward passes in an optimizer step
BATCH = 16  # samples in a backward pass of one worker
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    hvd.init()
    train_data, test_data = load_data()
    sampler = DistributedSampler(train_data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train_data, batch_size=BATCH, sampler=sampler, drop_last=True)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.002),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=ACCUMULATE,
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.01, total_steps=args.epochs * (len(loader) // ACCUMULATE)
    )
    scaler = torch.amp.GradScaler(DEVICE, enabled=DEVICE == "cuda")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, (images, labels) in enumerate(loader):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE)) / ACCUMULATE
            scaler.scale(loss).backward()
            if (number + 1) % ACCUMULATE == 0:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step()
        accuracy = validate(model, test_data)
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1}/{args.epochs}  loss {loss.item() * ACCUMULATE:.4f}  accuracy {accuracy:.4f}",
                flush=True,
            )
            with (args.out / "log.jsonl").open("a") as log:
                log.write(json.dumps({"epoch": epoch + 1, "accuracy": accuracy}) + "\n")
            if accuracy > best:
                torch.save(model.state_dict(), args.out / "best.pt")
        best = max(best, accuracy)


if __name__ == "__main__":
    main()
