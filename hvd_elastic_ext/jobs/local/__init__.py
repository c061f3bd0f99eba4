"""A function as a local elastic job: ``hvd_elastic_ext.run``, for notebooks.

Belongs here: the script that is made of a function, and its job. Never here: clusters.
"""
