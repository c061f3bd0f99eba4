"""What an agent may be told. Pure.

Belongs here: orders and their fields, what the agent's parts need of one another, whether a process is started again.

Never here: doing it.
"""
