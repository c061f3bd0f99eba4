"""``hvd-discover`` beside an API server."""
