"""Optimizers: averaging gradients where Horovod does not, and the learning rate for a number of ranks.

Belongs here: the optimizers that ``elastic.wrap`` makes, and the state of a step in progress.

Never here: the committed state of an optimizer: see ``parts``.
"""
