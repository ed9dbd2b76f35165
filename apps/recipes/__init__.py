"""What people know how to serve: versioned recipes, immutable once used."""
