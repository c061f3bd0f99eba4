"""Connections with agents.

Belongs here: the control port, its connections, which of them are accepted, the environment of a training process.

Never here: what messages mean, and when they are sent.
"""
