"""Who wanted what, and what came of it: append-only, hash-chained entries, written in the transaction of the act."""
