"""The code that a job trains with: which files of a folder belong to it, one checksum of them, their archive, and the
program that takes it on a host (``receive``).

Belongs here: what those that send code, take it, start a job or check a host ask of a folder. Never here: over what
code is sent, and what a difference leads to.
"""
