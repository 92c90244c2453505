"""Benchmarks, their recorded results, and the pages made from them."""
