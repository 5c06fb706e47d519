"""A Debian or Ubuntu root filesystem from packages: without root, and without any tool of Debian's on the machine.

`sources` says where packages come from, `release` whom to believe, `index` and `resolve` which ones are needed,
`download` brings them, `deb` opens them, `rootfs` puts them together, and `bootstrap` does all of this in order.
"""
