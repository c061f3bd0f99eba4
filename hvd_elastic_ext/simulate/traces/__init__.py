"""Hosts that come and go: traces as files, and made from a few numbers.

Belongs here: reading and making rows. Never here: what a job does about them.
"""
