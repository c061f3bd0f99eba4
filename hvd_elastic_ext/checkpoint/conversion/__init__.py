"""Converts checkpoints to files of other programs, and back.

Belongs here: code that reads or writes files of torch, of safetensors and of Keras.

Never here: checkpoints of ours.
"""
