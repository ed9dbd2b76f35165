"""What we know of nodes: how to reach them, their pinned host keys, their sheets of facts. Rows only; SSH happens in workers."""
