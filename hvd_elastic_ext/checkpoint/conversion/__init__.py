"""Checkpoints as files of other programs, and the other way round.

Belongs here: what reads or writes files of torch and of safetensors.

Never here: checkpoints of ours.
"""
