"""Checkpoints: sealed commits as files on storage, and back.

Belongs here: the files on storage, how they get there and back, and the commands for them.

Never here: code that runs anything that a file names. Nothing is pickled or unpickled. Only ``conversion`` and
``values`` import torch.

Each folder may import those below it::

    programs           commands, and programs that agents start: JSON requests in, JSON answers out
    conversion         checkpoints as files of other programs, and back
    archive, transfer  whole checkpoints; transfers of commits between hosts, and to and from memory
    stores             local and shared file systems; object stores and the rest through fsspec
    format             names, parts, manifest, checksums: which bytes are in which file
    values             the values of a State as text: one writer and one reader

A checkpoint is a folder. Each rank with a side (``core/commit_record.py``) of the commit writes a part of it there,
under new names. When all parts are on storage, ``manifest.json`` is written. It names every file with its length and
checksums. Before that there is no checkpoint; after that, none of its files is written again. A removal deletes the
manifest first.
"""
