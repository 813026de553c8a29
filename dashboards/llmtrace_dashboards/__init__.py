"""Dashboards, recording rules and alerts as code, and the importer that puts them into Grafana."""
