"""What is put into other people's modules: Horovod's, in processes that an agent has started.

Belongs here: the changes themselves.

Never here: the folder on ``PYTHONPATH`` that brings them in: that is ``hook``.
"""
