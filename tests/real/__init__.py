"""Tests against real programs: a vLLM on the CPU, real networks, real delays."""
