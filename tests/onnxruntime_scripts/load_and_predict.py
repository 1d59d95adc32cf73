"""Written for onnxruntime: what a model takes, and a prediction, on its example 'sigmoid'."""
import numpy
import onnxruntime as rt
from onnxruntime.datasets import get_example

example = get_example("sigmoid.onnx")
options = rt.SessionOptions()
options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.intra_op_num_threads = 1
options.execution_mode = rt.ExecutionMode.ORT_SEQUENTIAL
sess = rt.InferenceSession(example, options, providers=["CPUExecutionProvider"])

input_name = sess.get_inputs()[0].name
print("input name", input_name)
input_shape = sess.get_inputs()[0].shape
print("input shape", input_shape)
input_type = sess.get_inputs()[0].type
print("input type", input_type)
output = sess.get_outputs()[0]
print("output", output.name, output.shape, output.type)

x = numpy.random.RandomState(1).random_sample((3, 4, 5)).astype(numpy.float32)
res = sess.run([output.name], {input_name: x})
print(res[0].dtype, res[0].shape, numpy.round(res[0], 4))
