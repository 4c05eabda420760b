"""Operating it: what whoever runs the service needs."""
