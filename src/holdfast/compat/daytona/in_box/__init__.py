"""Programs that the Daytona API runs inside boxes. Standard library only, Python 3.9 and newer."""
