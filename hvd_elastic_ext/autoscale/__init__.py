"""How many hosts a job is worth: ``(now, observations, limits) -> (size, reason)``. Pure.

One module a policy; ``decide`` puts limits, time and cost around whatever a policy wishes. Who makes hosts come and go
is ``launcher/scaling``. What reads a clock, a file or a socket does not belong here.
"""
