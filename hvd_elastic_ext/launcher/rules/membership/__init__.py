"""Which processes should be in the world, and what a process of it is given: rank, keys, device. Pure.

Belongs here: membership, whether a world may form and from which commit (``custody``), rendezvous, devices.

Never here: blame, checkpoints on storage.
"""
