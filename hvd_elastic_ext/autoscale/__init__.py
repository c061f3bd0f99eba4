"""How many hosts a job should have: ``(now, observations, limits) -> (size, reason)``. Pure.

Belongs here: a module for each policy, and ``decide``, which applies limits, time and cost to a policy's wish.

Never here: what reads a clock, a file or a socket. ``launcher/job/scalers.py`` adds and removes hosts.
"""
