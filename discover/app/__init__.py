"""The daemon: its settings, how its parts are put together, its loop.

Belongs here: what joins a source and the places where hosts are published.

Never here: anything that only one source or one place needs.
"""
