"""Timing beside other engines, and kernels beside what the machine can do at most.

    engines in processes of their own (processes, worker, openers, peers)
        take turns (turns, contest)  ->  medians, ratios, differences (compare)
    kernels, one by one (steps)  beside  peaks of the device (peaks)  ->  roofline
"""
