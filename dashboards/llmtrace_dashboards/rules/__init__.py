"""Recording rules, alert rules and SLOs."""
