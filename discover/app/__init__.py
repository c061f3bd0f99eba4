"""The daemon: its settings, assembly and loop.

Belongs here: what connects a source with the places where hosts are published.

Never here: code that only one source or one place needs.
"""
