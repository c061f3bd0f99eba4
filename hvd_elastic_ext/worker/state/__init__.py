"""The State of a training script: commit, roll back, sync, and the loop around the training function.

Belongs here: the code of the public classes, the content of a commit, the values that stay on a rank, journal lines.

Never here: how one kind of object is saved (``parts``), how ranks agree (``sync``), memory (``commits``).
"""
