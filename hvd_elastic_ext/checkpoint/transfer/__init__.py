"""A commit on its way between hosts, and in and out of the commit memory of a slot. Bytes only.

Belongs here: the protocol between two agents' helpers, and reading and writing a slot's memory beside its process.

Never here: storage, formats, anything foreign.
"""
