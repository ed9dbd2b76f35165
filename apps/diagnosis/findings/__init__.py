"""What the facts of one or more nodes mean for a deployment, worst first. Pure."""
