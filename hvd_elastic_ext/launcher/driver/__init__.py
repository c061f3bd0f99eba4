"""What an event means: events become facts, facts become decisions, decisions become orders.

Belongs here: the order in which engines and planners are asked.

Never here: sockets, processes, files, and the decisions themselves.
"""
