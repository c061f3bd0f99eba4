"""Transfers commits between hosts, and reads and writes the commit memory of a slot. Bytes only.

Belongs here: the protocol between two agents' helpers, and reading and writing a slot's memory beside its process.

Never here: storage, formats, other packages.
"""
