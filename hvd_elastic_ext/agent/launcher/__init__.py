"""The agent's side of the launcher: the connection, and what is told over it.

Belongs here: the channel and its backlog, one agent a host and job, facts of the host.

Never here: training processes.
"""
