"""Drive an endpoint with a workload, and record what its requests waited for."""
