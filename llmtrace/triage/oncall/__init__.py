"""On call: alerts come in, are triaged, and what was found goes out to people."""
