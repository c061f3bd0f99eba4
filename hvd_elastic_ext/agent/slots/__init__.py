"""One slot: its commit memory, its training process, and their connections with the agent.

Belongs here: starting and ending a training process, its output, its link, its rendezvous proxy.

Never here: other slots, and the launcher.
"""
