"""Adapters: the only modules that know a database."""
