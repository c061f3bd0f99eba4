"""The options of ``horovodrun`` that ``run`` extends: Horovod's own parser, and ours where there is no Horovod.

Belongs here: how those options are read. ``horovod.runner`` is imported in ``horovod_options`` only.

Never here: options of our own.
"""
