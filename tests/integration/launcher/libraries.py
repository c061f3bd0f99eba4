"""The collectives of Horovod that scripts of tests use, by the library of another engine: what people write there."""

from __future__ import annotations

import torch

import hvd_elastic_ext.torch as elastic


class _Library:
    """As the module ``horovod.torch``. Names of operations have no meaning here."""

    Average = None
    init = staticmethod(elastic.init)
    rank = staticmethod(elastic.rank)
    size = staticmethod(elastic.size)

    @staticmethod
    def DistributedOptimizer(optimizer, named_parameters):
        return elastic.wrap(optimizer, named_parameters)


class torchrun(_Library):
    @staticmethod
    def barrier():
        torch.distributed.barrier()

    @staticmethod
    def allreduce(tensor, op=None, name=""):
        torch.distributed.all_reduce(tensor)
        return tensor / torch.distributed.get_world_size()

    @staticmethod
    def broadcast_object(value, root_rank):
        values = [value]
        torch.distributed.broadcast_object_list(values, src=root_rank)
        return values[0]

    @staticmethod
    def allgather_object(value):
        values = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(values, value)
        return values

    @staticmethod
    def allgather(tensor, name=""):
        parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, tensor)
        return torch.cat(parts)


class mpirun(_Library):
    @staticmethod
    def _world():
        from mpi4py import MPI

        return MPI.COMM_WORLD

    @classmethod
    def barrier(cls):
        cls._world().Barrier()

    @classmethod
    def allreduce(cls, tensor, op=None, name=""):
        total = torch.empty_like(tensor)
        cls._world().Allreduce(tensor.numpy(), total.numpy())
        return total / cls._world().size

    @classmethod
    def broadcast_object(cls, value, root_rank):
        return cls._world().bcast(value, root=root_rank)

    @classmethod
    def allgather_object(cls, value):
        return cls._world().allgather(value)

    @classmethod
    def allgather(cls, tensor, name=""):
        return torch.cat(cls._world().allgather(tensor))
