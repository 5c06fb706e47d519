"""Commands on the server of a home, and on the machine it runs on."""
