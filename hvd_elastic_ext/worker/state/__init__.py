"""The State of a training script: commit, roll back, sync, and the loop around the training function.

Belongs here: the public classes, the Keeper behind them, and what it keeps: contents, the memory of the slot, files of
the user's own, an imported checkpoint; journal lines; what is wrong with a user's arguments.

Never here: how one kind of object is saved (``parts``), how ranks agree (``sync``), memory (``commits``).
"""
