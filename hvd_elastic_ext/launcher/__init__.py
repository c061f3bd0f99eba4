"""Published hosts in, running workers out.

Never imports the daemon or the worker; ``horovod.runner`` is imported in
``horovod_options.py`` alone.
"""
