"""The command line: `jitcl run, bench, dump, devices, cache`. Nothing else in jitcl imports it."""
