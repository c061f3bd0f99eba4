"""Connections with agents.

Belongs here: the control port, its connections, which are let in, what a training process finds in its environment.

Never here: what is said over a connection, and why.
"""
