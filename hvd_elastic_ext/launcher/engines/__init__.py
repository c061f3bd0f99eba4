"""What a change of the world is: within the processes (Horovod), or other processes (torchrun, mpirun).

Belongs here: all that only one engine does. ``engine`` has the table of engines.

Never here: hosts, health, commits and checkpoints. They know no engine.
"""
