"""Durable checkpoints of a running job.

Belongs here: when a checkpoint is made, a job that begins from one, checkpoints before a sleep, before hosts go and at
the end, how often commits are made.

Never here: reading and writing storage. Agents have that done by ``hvd_elastic_ext.checkpoint``.
"""
