"""Where hosts are published, and how each place is kept up to date.

Belongs here: files, ConfigMaps, HTTP, and who may write when several daemons run.

Never here: which hosts there are.
"""
