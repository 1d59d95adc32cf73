"""Written for onnxruntime: a picture enlarged through an IOBinding, into memory of its own."""
import sys

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
image, upscaled = session.get_inputs()[0], session.get_outputs()[0]
print(image, upscaled)
ramp = np.linspace(0, 1, 3 * 16 * 24, dtype=np.float32).reshape(1, 3, 16, 24)
inverse = 1 - ramp

binding = session.io_binding()
value = ort.OrtValue.ortvalue_from_numpy(ramp)
binding.bind_ortvalue_input(image.name, value)
binding.bind_output(upscaled.name)
session.run_with_iobinding(binding)
(new,) = binding.get_outputs()
print(new.shape(), new.data_type(), new.element_type(), new.device_name(), new.is_tensor())

into = ort.OrtValue.ortvalue_from_shape_and_type([1, 3, 48, 72], np.float32, "cpu", 0)
binding.clear_binding_outputs()
binding.bind_output(upscaled.name, "cpu", 0, np.float32, into.shape(), into.data_ptr())
value.update_inplace(inverse)
session.run_with_iobinding(binding)
plain = session.run(None, {image.name: inverse})[0]
print(np.abs(into.numpy() - plain).max() < 1e-6, np.round(new.numpy().mean(), 3),
      np.round(plain.mean(), 3))
options = ort.RunOptions()
options.log_severity_level = 3
print(np.round(session.run([upscaled.name], {image.name: ramp}, options)[0][0, :, ::16, ::24], 3))
