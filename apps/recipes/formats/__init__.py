"""Recipes as others write them -> a body of ours, and back. Pure: text in, frozen values out; nothing here reads a file, asks
a node or a network, or runs what it reads."""
