"""Checkpoints as a whole: written, read, listed, removed.

Belongs here: what takes a store and a checkpoint's format together.

Never here: sockets, command lines, other hosts.
"""
