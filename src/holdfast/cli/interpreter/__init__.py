"""`holdfast interpreter`: a persistent Python in a box."""
