"""The only door to a node: SSH transports with pinned host keys through any number of hops, detached jobs, tunnels.

No Django.
"""
