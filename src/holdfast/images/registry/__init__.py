"""Pulling images from OCI registries: names, authentication, manifests, blobs, and the import of what came.

Everything that a registry sends is distrusted. `reference` parses names, `client` speaks the distribution API,
`authentication` answers challenges, `manifest` decides what to fetch, `blobs` fetches it, and `pull` does all of this
in order.
"""
