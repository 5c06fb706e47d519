"""The toolbox: what the Daytona API does inside one sandbox."""
