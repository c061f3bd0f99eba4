"""The code of a job: which files of a folder belong to it, one checksum of them, their archive, and the program that
receives it on a host (``receive``).

Belongs here: functions on such a folder for parts that send or receive code, start a job or check a host. Never here:
how code is sent, and the reaction to a difference.
"""
