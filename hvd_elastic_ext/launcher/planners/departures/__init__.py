"""Hosts and processes that leave.

Belongs here: what processes are told of notices, the end of a job.

Never here: checkpoints that are made for it: see ``planners/checkpoints``.
"""
