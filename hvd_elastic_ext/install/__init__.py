"""What a user needs beside the package itself: Horovod's wheel, manifests for a cluster.

Belongs here: commands that find such files in a clone or in an installed package. Never here: what reads them.
"""
