"""OpenTelemetry's GenAI client metrics, by OTLP."""
