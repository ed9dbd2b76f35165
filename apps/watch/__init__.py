"""Notices when the world drifts away from what is wanted. A robot user: it never changes a node by itself."""
