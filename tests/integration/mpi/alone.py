"""A usual script under mpirun. Horovod is built without MPI here, so each process is rank 0 of a world of 1."""

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

hvd.init()
print("horovod's world:", hvd.rank(), hvd.size(), flush=True)
state = elastic.TorchState(model=torch.nn.Linear(1, 1), epoch=0)
print("training alone", flush=True)
