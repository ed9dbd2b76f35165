"""Fetch a model revision from a hub into a node's cache: the wish, and the scripts that carry it out."""
