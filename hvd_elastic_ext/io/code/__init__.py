"""The code that a job trains with: which files of a folder belong to it, and one checksum of them.

Belongs here: what those that send code, start a job or check a host ask of a folder. Never here: how code gets to a
host, and what a difference leads to.
"""
