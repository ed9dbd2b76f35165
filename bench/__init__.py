"""Measurements of our own cost. `python -m bench --list` names them; docs/benchmarks.md tells what each figure means."""
