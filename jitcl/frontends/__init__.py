"""Frontends turn model files into graphs. Importing this package imports no model library."""
