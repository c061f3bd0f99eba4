"""What has gone wrong, whose fault it is, and what follows from it.

Leaving is not failing, silence is a failure, slowness is not. ``silence`` cuts off hosts and kills processes that send
nothing, unless ``link_loss`` finds that the launcher hears no host at all, or ``launcher_pauses`` that it was late
itself; ``ends`` finds why a process has ended, and which ends are only those of victims; ``strikes`` counts strikes
against slots, hosts and nodes in the ``ledger``, and ends the job only for its first cause; ``stalls``, ``pace`` and
``liveness`` watch worlds that send heartbeats and make no steps.
"""
