-- Delete the spans that began until {until_ns}, unix nanoseconds, before this returns.
ALTER TABLE otel_traces DELETE WHERE toUnixTimestamp64Nano(Timestamp) <= {until_ns}
SETTINGS mutations_sync = 1
