"""Matching callers with resources, and the stores of resources."""
