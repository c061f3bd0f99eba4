"""Runs inside a training process: keeps commits, rolls back to them, and reacts to changes of hosts.

Belongs here: code that runs inside a training process. It may import torch, but Horovod only in ``stock`` and
``comms.horovod``, because Horovod may be absent.

Never here: the daemon, the launcher, the agent, or code that decides about hosts.

Each folder may import those below it::

    hook                       the folder for ``PYTHONPATH``: it applies the patches
    patches, kubeai, engines   changes of Horovod; Alibaba's SDK; programs in standby for torchrun and mpirun
    state                      commit, roll back, sync: the State and its loop
    parts, sync, data, optim, calls   parts of a State; agreements of ranks; samples; optimizers; training calls
    comms, commits             collectives, one module for each library; commits as bytes in memory
    stock, process             Horovod's classes, or stand-ins; this process, its link, how it enters a world
"""
