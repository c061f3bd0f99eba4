"""Connections with agents.

Belongs here: the control port, its connections, who is let in, what a training process finds in its environment.

Never here: what is said over a connection, and why.
"""
