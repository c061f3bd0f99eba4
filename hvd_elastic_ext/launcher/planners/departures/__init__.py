"""Hosts and processes that leave.

Belongs here: messages to processes about notices, the end of a job.

Never here: checkpoints that are made for it: see ``planners/checkpoints``.
"""
