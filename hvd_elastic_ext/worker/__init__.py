"""Notice a change, keep a commit, return to it.

Belongs here: what runs inside a training process. torch is welcome; Horovod only behind ``stock`` and
``comms.horovod``: it may be absent.

Never here: the daemon, the launcher, the agent, or anything that decides about hosts.

Each folder may import those below it::

    patches, kubeai            what is put into Horovod; Alibaba's SDK
    state                      commit, roll back, sync: the State and its loop
    parts, sync, data, optim   what a State is made of; what ranks agree on; samples; optimizers
    comms                      collectives, one door a library
    commits                    commits as bytes in memory
    stock                      Horovod's classes, or stand-ins where there is no Horovod
    process                    this process: its link to the agent, how it enters a world

``hook`` is a folder for ``PYTHONPATH``. ``engines`` holds the programs that stand by in a slot for torchrun and mpirun.
"""
