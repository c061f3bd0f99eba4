"""A few messages to a webhook about important events.

Belongs here: what is worth a message, how often, and how it is sent.

Never here: lines of the terminal and the journal.
"""
