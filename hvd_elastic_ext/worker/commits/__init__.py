"""Commits as bytes in memory that may outlive the process.

Belongs here: the layout of commits, how they are staged and sealed, and the memory that contains them.

Never here: the content of a State and how its values are written, other ranks, or when a commit is taken.
"""
