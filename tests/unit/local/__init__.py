"""Tests of the project's own programs."""
