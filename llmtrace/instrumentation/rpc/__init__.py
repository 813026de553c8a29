"""Record responses over WebSocket and gRPC."""
