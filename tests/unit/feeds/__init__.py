"""Tests of schedules and relay."""
