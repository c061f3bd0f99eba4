"""Converts checkpoints to files of other programs, and back.

Belongs here: code that reads or writes files of torch and of safetensors.

Never here: checkpoints of ours.
"""
