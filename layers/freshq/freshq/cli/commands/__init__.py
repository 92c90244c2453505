"""The commands of `freshq`, one module for each or for a few that belong together."""
