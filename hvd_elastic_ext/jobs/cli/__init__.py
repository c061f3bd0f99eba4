"""Commands about jobs on a cluster.

Belongs here: options and output, one module a command. Never here: decisions, requests.
"""
