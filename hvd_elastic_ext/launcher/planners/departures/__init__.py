"""Hosts and processes that leave.

Belongs here: notices that a host goes, what its processes are told before, ends of processes, the end of a job.

Never here: checkpoints that are made for it: see ``planners/checkpoints``.
"""
