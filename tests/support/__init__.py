"""Harnesses that more than one test module needs."""
