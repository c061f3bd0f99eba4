"""What a change of the world is: within the processes (Horovod), or other processes (torchrun, mpirun).

Belongs here: all that only one engine decides. ``engine`` has the table of engines.

Never here: hosts, health, commits and checkpoints, which know no engine; the programs that an engine starts: see
``launcher/engines``.
"""
