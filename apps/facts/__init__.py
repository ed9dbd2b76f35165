"""What is true on a node. One class = a command + a pure parser + a frozen value with units; None means unknown, never 0."""
