"""How long may a request take, and which stage may take how much of it?

What a budget is, and how one is read. The arithmetic, reports and suggestions are in modules of
their own: they need what an application does not.
"""

from llmtrace.budget.file import read_budget, read_budgets
from llmtrace.budget.model import DEFAULT, Budget, Budgets, regex

__all__ = ["DEFAULT", "Budget", "Budgets", "read_budget", "read_budgets", "regex"]
