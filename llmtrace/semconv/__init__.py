"""Names on the wire: rows to and from OpenTelemetry attributes."""
