"""One rank of two: meets its peer through its door, twice; the second time it asks for its rank."""

import os

os.environ |= {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": os.environ["HVD_ELASTIC_DOOR"],
}

import horovod.torch as hvd
import torch

for turn in range(2):
    hvd.init()
    total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum)
    print(turn, hvd.rank(), hvd.size(), total.item(), flush=True)
    hvd.shutdown()
