"""Patches of Horovod's modules, in processes that an agent starts.

Belongs here: the patches themselves.

Never here: the folder on ``PYTHONPATH`` that applies them (``hook``).
"""
