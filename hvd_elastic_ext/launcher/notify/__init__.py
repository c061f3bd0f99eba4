"""What people are told who do not look: a few messages to a webhook.

Belongs here: what is worth a message, how often, and how it is sent.

Never here: what the terminal and the journal say.
"""
