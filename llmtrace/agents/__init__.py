"""Turns of agents and their tool calls: the public blocks and decorators."""
