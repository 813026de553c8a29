"""Read what headers report of gateways, caches and servers."""
