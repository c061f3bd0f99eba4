"""Elastic training for Horovod that keeps its promise.

Importing this package costs nothing: it pulls in neither torch, nor horovod,
nor kubernetes. PyTorch users import :mod:`hvd_elastic_ext.torch`.
"""

__version__ = "0.1.0"
