"""Which stage, workload and cohort a change of p95 comes from."""
