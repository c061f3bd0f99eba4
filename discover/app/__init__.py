"""The daemon: its settings, assembly and loop.

Belongs here: what joins a source and the places where hosts are published.

Never here: what only one source or one place needs.
"""
