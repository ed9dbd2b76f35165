"""What is true on a node.

One class is a command, a pure parser and a frozen value with units; None means unknown, never 0.
"""
