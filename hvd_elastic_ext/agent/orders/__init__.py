"""What an agent may be told. Pure.

Belongs here: orders and their fields.

Never here: doing it.
"""
