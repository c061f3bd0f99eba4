"""Commits as bytes in memory that may outlive the process.

Belongs here: where commits lie, how they are staged and sealed, and which memory they lie in.

Never here: what a State holds and how values are written, other ranks, or when a commit is taken.
"""
