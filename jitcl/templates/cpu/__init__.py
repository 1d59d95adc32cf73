"""What the CPU's templates share."""
