"""The same services as JSON under /api/v1, with bearer tokens; and the two health answers."""
