"""Operating it: figures of the queues, metrics, health, and which workers live."""
