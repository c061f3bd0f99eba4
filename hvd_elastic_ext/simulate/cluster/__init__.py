"""A cluster in virtual time: agents, training processes, storage and network around a real driver.

Belongs here: the behaviour of agents and processes, and its duration.
Never here: measurements and checks of it, which belong to an
:class:`~hvd_elastic_ext.simulate.cluster.observer.Observer`.
"""
