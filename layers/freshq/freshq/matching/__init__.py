"""Matching callers to resources, and the stores of resources."""
