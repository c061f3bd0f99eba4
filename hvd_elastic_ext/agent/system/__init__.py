"""Access to the machine for the agent: one poll for all descriptors, streams, names, memory, processor.

Belongs here: code that any part of the agent may need.

Never here: slots, orders, the launcher.
"""
