"""Optimizers: averaging gradients where Horovod does not, and the learning rate for a number of ranks.

Belongs here: what ``elastic.wrap`` makes of an optimizer, and the state of a step in progress.

Never here: what is committed of an optimizer: see ``parts``.
"""
