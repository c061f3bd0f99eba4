"""The discovery daemon: cluster events in, published hosts out.

A stranger to the launcher and the worker: they meet only in
:mod:`hvd_elastic_ext.core`.
"""
