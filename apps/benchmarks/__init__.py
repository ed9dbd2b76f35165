"""Benchmarks: what a deployment delivers, measured, imported or entered by hand, and compared."""
