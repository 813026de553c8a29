"""How do commands speak to servers, and who may speak to ours?"""
