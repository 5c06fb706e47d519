"""The code that runs inside a box. It uses only the standard library (Python 3.9+), because it is copied in and runs
alone.
"""
