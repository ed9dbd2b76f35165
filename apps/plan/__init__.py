"""A spec and the sheets of its nodes become a plan: the exact commands, pure. Same input, same output, for ever."""
