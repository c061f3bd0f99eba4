"""Notice a change, keep a commit, return to it.

Belongs here: what runs inside a training process. torch is welcome;
``horovod.torch`` only behind ``comms.horovod``.

Never here: the daemon, the launcher, or anything that decides about hosts.
"""
