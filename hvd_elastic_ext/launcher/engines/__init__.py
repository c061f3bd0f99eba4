"""What a change of the world is: within the processes (Horovod), or other processes (torchrun, mpirun).

Belongs here: all that only one engine does. ``engine`` is what the driver asks of each, and Horovod's own.

Never here: hosts, health, commits and checkpoints. They know no engine.
"""
