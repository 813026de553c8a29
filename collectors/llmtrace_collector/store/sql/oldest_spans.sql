-- Up to when the oldest spans began, unix nanoseconds, if they are {share} of all.
SELECT quantile({share})(toUnixTimestamp64Nano(Timestamp)) FROM otel_traces
