"""Adapters: the only modules that know a database, besides `freshq.matching.stores`."""
