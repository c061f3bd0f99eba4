"""This training process: its link to the agent, its way into a world, out of it, and into the next one.

Belongs here: what every script loads that an agent starts. Standard library only.

Never here: torch, commits, States.
"""
