"""What the user has asked for, checked and frozen.

Belongs here: the settings of a job; which program its command names.

Never here: parsers of command lines, environment or files: see ``cli``.
"""
