"""What is known of a device, as data: no other package asks for a device's name."""

from jitcl.target.target import Target

__all__ = ["Target"]
