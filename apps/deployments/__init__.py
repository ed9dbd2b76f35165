"""What is wanted, in immutable revisions, and the state it is computed to be in."""
