"""What proves a set-up: a real server as a child process, faults for it, and clocks that stand still."""
