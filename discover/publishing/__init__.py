"""Where hosts are published, and how each place is kept up to date.

Belongs here: files, ConfigMaps, HTTP, and the choice of the one daemon that writes.

Never here: which hosts exist.
"""
