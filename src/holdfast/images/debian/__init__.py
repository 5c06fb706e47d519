"""Builds a Debian or Ubuntu root filesystem from packages, without root, using apt and dpkg of the machine.

`sources` finds the sources of packages, `apt` resolves, verifies and fetches them, `essential` unpacks those that dpkg
needs to run, and `system` lets dpkg install all of them in a box.
"""
