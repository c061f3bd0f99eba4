"""Agreements of ranks: which rank sends its commit, when all stop, which calls make a commit.

Belongs here: elections, agreements, exchanges, and the messages that start them.

Never here: libraries for collectives: see ``comms``.
"""
