"""Convolutions of bytes on CPUs that add their products by fours."""
