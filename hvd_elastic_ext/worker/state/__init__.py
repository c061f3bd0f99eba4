"""The State of a training script: commit, roll back, sync, and the loop around the training function.

Belongs here: what the public classes are made of, what a commit holds, what a rank keeps for itself, journal lines.

Never here: how one kind of object is saved (``parts``), how ranks agree (``sync``), memory (``commits``).
"""
