"""Pulls images from OCI registries: names, authentication, manifests, blobs, and the import of the result.

Everything that a registry sends is untrusted. `reference` parses names, `client` speaks the distribution API,
`authentication` answers challenges, `manifest` decides what to fetch, `blobs` fetches it, and `pull` does all of this
in order.
"""
