"""A commit: one point in time as bytes, in memory that may outlive the process.

Belongs here: where commits lie, how they are staged and sealed, how trees become
bytes and come back, who hands memory down.

Never here: what a State holds, other ranks, or when a commit is taken.
"""
