"""Ours measured beside stock Horovod, in the same run, on the same machine.

Here belong cases, what they need to start and watch jobs, and the frame that
repeats, compares and prints. Never anything that the product needs at run time.
"""
