"""A cluster in virtual time: agents, training processes, storage and network around a real driver.

Belongs here: what agents and processes do, and how long it takes. Never here: what is measured, or judged, about it:
that is an :class:`~hvd_elastic_ext.simulate.cluster.observer.Observer`.
"""
