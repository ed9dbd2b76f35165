"""What makes a machine a node: the wish of a person, addresses for the fabric, the scripts, and the way back."""
