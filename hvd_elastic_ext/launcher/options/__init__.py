"""What the user has asked for, checked and frozen.

Belongs here: the settings of a job, and what the driver reads of them; which program they name.

Never here: parsers of command lines, environment or files: see ``cli``.
"""
