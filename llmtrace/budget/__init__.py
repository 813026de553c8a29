"""What a latency budget is, and how one is read.

A budget limits how long a request may take, and how much of it each stage may. The arithmetic,
reports and suggestions are in `llmtrace.budget_analysis`: they need what an application does not.
"""

from llmtrace.budget.file import read_budget, read_budgets
from llmtrace.budget.model import DEFAULT, Budget, Budgets, regex

__all__ = ["DEFAULT", "Budget", "Budgets", "read_budget", "read_budgets", "regex"]
