"""Requests compared with a budget, and budgets suggested from requests."""
