"""Durable checkpoints of a running job.

Belongs here: which agents do what for a checkpoint, a job that begins from one, checkpoints before a sleep, before
hosts go and at the end, how often commits and checkpoints are made.

Never here: reading and writing storage. Agents have that done by ``hvd_elastic_ext.checkpoint``.
"""
