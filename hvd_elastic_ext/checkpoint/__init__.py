"""A commit that outlives the job: sealed commits as files, and back.

Never here: anything that would run what a file names. Nothing is pickled onto storage or unpickled from it. Torch is
imported by :mod:`export` and :mod:`imported` only.

In the order of the data::

    naming     a checkpoint's name is its commit's identity: which one is newer needs no clock
    places     where each tensor of a commit lies in its bytes, from the layout
    sharing    which writer writes which bytes: one safetensors file each
    stores/    local and shared file systems; object stores and the rest through fsspec
    checksums  of everything that is written, block by block
    manifest   what a checkpoint consists of: the small file that makes it exist
    saving     write_part, then seal
    shelf      what is there: listing, newest, prune
    choosing   which one is taken, also of several hosts' folders; which ones may go (pure)
    loading    whole or not at all: verified while it is read
    graph      trees of state without pickle
    clerk      the process beside an agent that does all this: JSON orders in, JSON answers out
    cli        `hvd-elastic checkpoints`;  export: as plain `torch.save` or safetensors
    imported   what `torch.save` wrote before there were checkpoints

A checkpoint is a folder. Whoever has a side (``core/side.py``) of the commit writes a part of its bytes there, under
names that nothing was ever written under before; when all parts are on storage, ``manifest.json`` is written, which
names every file with its length and checksums. Until then there is no checkpoint, whatever lies there; from then on
nothing in it is written again. To remove one, the manifest goes first.
"""
