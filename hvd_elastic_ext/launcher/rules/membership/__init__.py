"""Which processes should be in the world, and the rank, keys and device of each. Pure.

Belongs here: membership, whether a world may form and from which commit (``custody``), rendezvous, devices.

Never here: blame, checkpoints on storage.
"""
