"""The code that a job trains with: which files of a folder belong to it, one checksum of them, their archive, and the
program that takes it on a host (``receive``).

Belongs here: functions on such a folder for parts that send or receive code, start a job or check a host. Never here:
how code is sent, and what follows from a difference.
"""
