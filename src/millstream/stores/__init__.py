"""Where checkpoints are durable: one protocol, several back-ends, opened by URL."""
