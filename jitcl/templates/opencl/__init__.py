"""What the OpenCL templates share."""
