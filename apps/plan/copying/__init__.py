"""Model folders from node to node: what is wished (wish.py) and what runs on the nodes (scripts.py)."""
