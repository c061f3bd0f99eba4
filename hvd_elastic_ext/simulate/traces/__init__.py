"""Traces of hosts that come and go: read from files, or generated.

Belongs here: reading and generating rows.
Never here: the reaction of a job.
"""
