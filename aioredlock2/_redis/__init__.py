"""The Redis wire: dialects and greeting (pure), mux (sans-I/O), transport, handshake (redis-py)."""
