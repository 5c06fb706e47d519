"""What a server tells its operator: logs and metrics."""
