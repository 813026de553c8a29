"""Clients of the servers that commands talk to, and checks of who may reach ours."""
