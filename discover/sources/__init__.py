"""Where hosts are seen: one module a source, each the only importer of its third party."""
