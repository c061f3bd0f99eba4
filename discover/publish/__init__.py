"""Where hosts are published, and how each place is kept up to date.

Belongs here: files and HTTP; ``outputs`` says what another place takes.

Never here: which hosts exist.
"""
