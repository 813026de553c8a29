"""Time streams of every kind, and end their rows however they end."""
