"""When checkpoints and commits are made, and of which commit. Pure.

Belongs here: schedules, what checkpoints cost, how often something fails, one checkpoint on its way.

Never here: formats and storage: see ``hvd_elastic_ext.checkpoint``.
"""
