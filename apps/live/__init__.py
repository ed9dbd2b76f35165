"""What a page hears while it is open: one WebSocket with lines after its own cursor, and news of what it watches."""
