"""Test kits: a real server as a child process, fault injection for it, clocks, and suites that prove providers and
stores.
"""
