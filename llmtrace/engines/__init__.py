"""Engines' own spans, the vLLM plugin and a local vLLM."""
