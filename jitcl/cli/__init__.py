"""The command line: `jitcl run, dump, devices, cache`. Nothing else in jitcl imports it."""
