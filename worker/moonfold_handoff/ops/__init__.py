"""Operating it: figures of the queues, metrics, health, which workers live, and the server's users."""
