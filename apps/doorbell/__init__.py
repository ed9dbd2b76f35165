"""One word over Redis: "object 42 has news". Carries no content; losing a ring costs delay, never data."""
