"""A Debian or Ubuntu root filesystem from packages, without root: apt and dpkg of the machine do what they do best.

`sources` says where packages come from, `apt` resolves, verifies and fetches them, `essential` unpacks as many of them
as dpkg needs to run, and `system` has dpkg install all of them in a box.
"""
