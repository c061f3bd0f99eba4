"""What people read of the training processes, on a terminal and in files.

Belongs here: how lines are put together, marked, and written without waiting for a reader; the status line.

Never here: lines of the launcher itself.
"""
