"""`jitcl.profile`: where the time of runs goes, by kernels, and by everything else."""
