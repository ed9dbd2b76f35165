"""People, roles, tokens, sign-in links: who may do what, decided by one function."""
