"""Import dashboards, a data source and alerts into a Grafana, and keep them up to date."""
