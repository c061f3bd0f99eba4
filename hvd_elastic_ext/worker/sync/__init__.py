"""Agreements of ranks: which rank sends its commit, when all stop, which calls commit.

Belongs here: elections, agreements, exchanges, the messages that lead to them.

Never here: libraries for collectives: see ``comms``.
"""
