"""Secrets out of output, before it is stored or shown."""
