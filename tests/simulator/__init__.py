"""Tests of the simulated engine: the model in virtual time, the server over loopback."""
