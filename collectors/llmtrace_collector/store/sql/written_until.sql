-- Up to when parts were joined, by the clock of then, and the version that is wholly written: where a
-- server runs the join itself, it does not say so.
SELECT max(until_ns), maxIf(version_ns, until_ns > 0) FROM joins
