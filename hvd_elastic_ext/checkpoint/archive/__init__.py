"""Checkpoints as a whole: written, read, listed, removed.

Belongs here: code that uses both a store and the format of checkpoints.

Never here: sockets, command lines, other hosts.
"""
