"""Compare two runs: which stage moved, by how much, and whether it is more than chance."""
