"""A differential fuzzer: random ONNX graphs on jitcl's devices against onnx's reference evaluator.

    drawing    random values and nodes, as Hypothesis draws them
    pointwise, shaping, heavy    how the nodes of each op are drawn
    corrected  single nodes by onnx's reference, corrected where it is wrong
    oracle     what a right answer is, and how far from it a right device may be
    bounds     what of that follows from an op's formula: sums in any order, products that overflow
    engines    runs a drawn graph on a device and judges it
    __main__   the longer mode: `python -m tests.fuzz --graphs 10000 --seed 7 --device cpu`

`tests/test_fuzz.py` runs a fixed selection; what was found and fixed stands in
`tests/test_fuzz_finds.py`.
"""
