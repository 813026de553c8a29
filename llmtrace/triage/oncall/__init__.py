"""On call: receive alerts, triage each, store the report and notify people."""
