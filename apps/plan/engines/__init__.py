"""One file per engine: its command line, its environment, and the stages that start it."""
