"""Tests of the functions."""
