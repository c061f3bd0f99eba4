"""The discovery daemon: reads events of a cluster, and publishes hosts.

Belongs here: the program ``hvd-discover``. ``cli`` has its options; ``probe`` asks it whether it is well.

Never here: the launcher, the agent and the worker. The daemon shares only :mod:`hvd_elastic_ext.core` and
:mod:`hvd_elastic_ext.io` with them.
"""
