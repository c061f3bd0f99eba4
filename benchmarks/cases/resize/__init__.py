"""Jobs whose hosts change, and the launcher of a large job."""
