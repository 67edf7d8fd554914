"""What nodes run in: local processes or containers."""
