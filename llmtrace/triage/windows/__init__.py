"""The windows before and after an incident, found or given."""
