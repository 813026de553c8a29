"""How do dashboards, a data source and alerts get into a Grafana, and stay as they are here?"""
