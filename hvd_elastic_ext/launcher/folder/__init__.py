"""The job's folder, by which a launcher continues the job of the launcher before it.

Belongs here: who may own the folder, its lock, what is saved for the next launcher, which run of the job this is.

Never here: the journal, commits and checkpoints, and what a launcher does with what it reads.
"""
