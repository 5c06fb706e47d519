"""Daytona's snapshots, and the images that sandboxes begin with."""
