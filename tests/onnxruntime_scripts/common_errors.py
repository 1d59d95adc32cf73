"""Written for onnxruntime: a classifier of scikit-learn's, its metadata, and what goes wrong."""
import numpy
import onnxruntime as rt
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

data = load_iris()
trained = LogisticRegression(max_iter=500).fit(data.data[::2], data.target[::2])
model = to_onnx(trained, data.data[:1].astype(numpy.float32), target_opset=17)
sess = rt.InferenceSession(model.SerializeToString(), providers=rt.get_available_providers())
meta = sess.get_modelmeta()
for name in ("custom_metadata_map", "description", "domain", "graph_description", "graph_name",
             "producer_name", "version"):
    print(name, getattr(meta, name))
for arg in sess.get_inputs() + sess.get_outputs():
    print(arg.name, arg.type, arg.shape)
input_name = sess.get_inputs()[0].name

x = data.data[1::2].astype(numpy.float32)
labels, scores = sess.run(None, {input_name: x})
print(labels, [{k: round(v, 4) for k, v in row.items()} for row in scores[::10]])

attempts = {
    "double": lambda: sess.run(None, {input_name: x.astype(numpy.float64)}),
    "rank": lambda: sess.run(None, {input_name: x[None]}),
    "size": lambda: sess.run(None, {input_name: x[:, :1]}),
    "name": lambda: sess.run(None, {"misspelled": x, input_name: x}),
    "output": lambda: sess.run(["misspelled"], {input_name: x}),
    "missing": lambda: sess.run(None, {}),
}
for what, attempt in attempts.items():
    try:
        attempt()
    except rt.capi.onnxruntime_pybind11_state.InvalidArgument:
        print(what, "InvalidArgument")
    except ValueError:
        print(what, "ValueError")
try:
    rt.InferenceSession("no-such-file.onnx")
except Exception as error:  # noqa: BLE001
    print(type(error).__name__)
