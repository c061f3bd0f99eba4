"""Installs things beside the package itself: Horovod's wheel, manifests for a cluster, shell completion.

Belongs here: commands that find such files in a clone or in an installed package. Never here: code that reads these
files.
"""
