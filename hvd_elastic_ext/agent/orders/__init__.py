"""The orders that an agent accepts. Pure.

Belongs here: orders and their fields.

Never here: their execution.
"""
