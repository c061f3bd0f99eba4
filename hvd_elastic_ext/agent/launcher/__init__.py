"""The agent's connection to the launcher, and the data sent over it.

Belongs here: the channel and its backlog, one agent a host and job, facts of the host.

Never here: training processes.
"""
