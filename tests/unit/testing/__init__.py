"""Tests of freshq.testing."""
