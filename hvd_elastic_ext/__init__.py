"""Elastic training for Horovod that keeps its promise.

Belongs here: the command ``hvd-elastic`` (``cli``), and :mod:`hvd_elastic_ext.torch`, which PyTorch users import.

Never here: anything else. Importing this package costs nothing: it loads neither torch, nor horovod, nor kubernetes.
"""

__version__ = "0.1.0"
