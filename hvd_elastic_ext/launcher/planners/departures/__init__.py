"""Hosts and processes that leave.

Belongs here: notices of preemption and what processes are told of them, ends of processes, the end of a job.

Never here: checkpoints that are made for it: see ``planners/checkpoints``.
"""
