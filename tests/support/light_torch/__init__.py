"""A folder for ``PYTHONPATH``: torch without its compiler, in the processes that tests start."""
