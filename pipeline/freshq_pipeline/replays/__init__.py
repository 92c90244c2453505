"""Simulate the recorded load of each queue under other policies and capacities."""
