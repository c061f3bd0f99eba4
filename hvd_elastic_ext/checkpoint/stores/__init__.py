"""Storage of checkpoints: folders of files, one folder for each checkpoint.

Belongs here: the interface, and which storage a path or URL names (``store``); a module for each kind of storage. All
kinds pass one contract suite (``tests/contract/checkpoint``).

Never here: what is in the files.
"""
