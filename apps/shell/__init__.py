"""How a command line is written: words, quoted once, combined by a handful of functions. Pure; imports nothing of ours."""

from apps.shell.command import Command, Secret, Shell, all_of, any_of, into, lines, pipe, quiet

__all__ = ["Command", "Secret", "Shell", "all_of", "any_of", "into", "lines", "pipe", "quiet"]
