"""What the launcher starts for an engine (``core/engines.py``).

Belongs here: what an agent starts in a slot, and for an engine with a program of its own on the launcher's machine, a
module of the engine's name.

Never here: what runs in a slot (``worker/engines``), and what a change of the world is (``state/effects/engines``).
"""
