"""The code that a job trains with: which files of a folder belong to it, one checksum of them, and their archive.

Belongs here: what those that send code, take it, start a job or check a host ask of a folder. Never here: how code gets
to a host, and what a difference leads to.
"""
