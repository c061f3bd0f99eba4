"""How many hosts a job is worth: ``(now, observations, limits) -> (size, reason)``. Pure.

Belongs here: a module for each policy, and ``decide``, which puts limits, time and cost around whatever one wishes.

Never here: what reads a clock, a file or a socket. Who makes hosts come and go is ``launcher/job/scalers.py``.
"""
