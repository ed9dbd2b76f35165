"""One attempt at a story: carries a stored plan out over SSH and records every line. Detached on the node, leased here."""
