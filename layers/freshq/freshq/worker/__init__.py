"""The worker: claim, run, settle."""
