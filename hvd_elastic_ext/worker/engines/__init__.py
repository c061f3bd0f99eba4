"""Between an agent and a training process that has its place in its environment and keeps it: torchrun's and mpirun's.

An agent starts :mod:`hvd_elastic_ext.worker.engines.slot_program` in a slot, with the command behind it. That one waits
for its world as any newcomer does, without having loaded anything; once it knows its rank it becomes the training
process (torchrun), or lets one that ``mpirun`` starts have all that the slot owns (mpirun).

Standard library only: as long as others train it stands by, and is to cost them nothing.
"""
