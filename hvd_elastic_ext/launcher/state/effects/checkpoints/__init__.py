"""Effects on checkpoints.

Belongs here: one attempt to make a checkpoint from its begin to its end, what memory holds and is saved while no
process trains, loads before the first world, what checkpoints cost.

Never here: when a checkpoint is due, and reading and writing storage.
"""
