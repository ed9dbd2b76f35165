"""The programs that plans call, one module each. Every function returns words; nothing here runs anything."""
