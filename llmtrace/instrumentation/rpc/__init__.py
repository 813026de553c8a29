"""How are answers over WebSocket and gRPC recorded?"""
