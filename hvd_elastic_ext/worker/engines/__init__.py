"""Programs between an agent and a training process that gets its place from its environment: torchrun and mpirun.

An agent starts :mod:`hvd_elastic_ext.worker.engines.slot_program` in a slot, with the training command as arguments.
The program waits for its world as every newcomer does, but loads nothing meanwhile. When it has a rank, it becomes the
training process (torchrun), or hands all resources of the slot to a process that ``mpirun`` starts.

Belongs here: that program (``slot_program``, with its link and its wait), and for each engine the modules of its name.

Never here: anything beyond the standard library: the program waits while others train, and must use no resources.
"""
