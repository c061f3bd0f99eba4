"""Storage of checkpoints: folders of files, one folder for each checkpoint.

Belongs here: the interface (``store``), a module for each kind of storage, and which of them a path or URL names
(``choose``). All kinds pass one contract suite (``tests/contract/checkpoint``).

Never here: what is in the files.
"""
