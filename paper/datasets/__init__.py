"""Public datasets from download to table, one file each."""
