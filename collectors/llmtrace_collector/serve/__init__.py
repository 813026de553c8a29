"""What the collector answers: `/metrics`, the read API, the live page, and whether it is well."""
