"""Where hosts are published, and how each place is kept up to date.

Belongs here: files, ConfigMaps, HTTP, and which of several daemons writes.

Never here: which hosts there are.
"""
