"""Are streams of the frameworks people use rows? With the real packages, in their own environment.

`test_environment.py` runs the others there: LiteLLM wants older SDKs than the rest of the tests.
"""
