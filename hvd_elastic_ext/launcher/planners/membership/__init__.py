"""Who is in the next world, as far as something has to be done about it.

Belongs here: the newest commit before a world forms, commits on their way from one host to another, too few hosts,
hosts that a former launcher had.

Never here: who should be in the world. That is decided in ``rules/membership``.
"""
