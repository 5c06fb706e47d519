"""What a server adds to sessions: their operations, gateways and workstations."""
