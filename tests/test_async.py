"""`Model.submit` and `Model.close`: results, and a table of misuse. What may take a process down is
run in one of its own, with a time limit (tests/test_forking.py).
"""

from __future__ import annotations

import functools
import textwrap

import numpy as np
import pytest
from onnx import TensorProto, helper

import jitcl
from tests import test_forking
from tests.devices import present
from tests.test_forking import OPENCL, SAFE

ALL = [s for s in present() if s != "reference"]

# beside test_forking's: what the rows of the table are written with
COMMON = '''
import ast, asyncio, concurrent.futures, gc, logging, textwrap, weakref
CAST = "graph @c(%x: f32[64,256]) {\\n  %y = cast(%x) {to='f64'}\\n  return %y\\n}"
FEEDS = {"x": X, "w": W}
LOGGED = []

class Keep(logging.Handler):
    def emit(self, record):
        LOGGED.append(record.getMessage())

for name in ("jitcl", "concurrent.futures"):
    logging.getLogger(name).addHandler(Keep())
    logging.getLogger(name).propagate = False

class Held:
    """A model of which runs begin, and end when `go` is called."""
    def __init__(self):
        self.model = compiled()
        compute, self.begun, self.gone = self.model.run, threading.Event(), threading.Event()
        def run(feeds):
            self.begun.set()
            assert self.gone.wait(60)
            return compute(feeds)
        self.model.run = run
        self.run = self.model.submit(FEEDS)
        self.begun.wait()
    def go(self):
        self.gone.set()

def ok(outputs):
    return bool(np.abs(outputs["y"] - WANT).max() < 1e-3)

def told(function, *args, **kwargs):
    """What a call comes to: repr of its value, or the error's class and first line."""
    try:
        return repr(function(*args, **kwargs))
    except (jitcl.JitclError, TimeoutError, concurrent.futures.CancelledError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

def row(name, code):
    """Run the lines of a row; its last one is an expression."""
    *before, last = ast.parse(textwrap.dedent(code)).body
    scope = dict(globals())
    exec(compile(ast.Module(before, []), name, "exec"), scope)
    print(name, "=>", eval(compile(ast.Expression(last.value), name, "eval"), scope), flush=True)
'''

# (what is done, its lines, what comes of it)
TABLE = (
    ("read before it is done", """
        held = Held()
        said = told(held.run.result, 0.01), told(held.run.exception, 0), held.run.done()
        held.go()
        *said, ok(held.run.result())
        """, """('TimeoutError: <jitcl.Run of model g: under way>: it is not done after 0.01 s',
        'TimeoutError: <jitcl.Run of model g: under way>: it is not done after 0 s',
        False, True)"""),
    ("wrong dtype", "told(compiled().submit, {'x': X.astype('f8'), 'w': W})",
     "InputError: input 'x' f32[64,256]: got dtype float64, wanted float32; convert it with "
     "array.astype('float32')"),
    ("wrong shape", "told(compiled().submit, {'x': X[:3], 'w': W})",
     "InputError: input 'x' f32[64,256]: axis 0 is 3, wanted 64 (got shape (3, 256))"),
    ("wrong name", "told(compiled().submit, {'x': X, 'v': W})",
     "InputError: there is no input 'v'; the inputs are 'x' f32[64,256], 'w' f32[256,256]"),
    ("an input that is not fed", "told(compiled().submit, {'x': X})",
     "InputError: input 'w' f32[256,256] was not fed; fed were 'x'"),
    ("no dict", "told(compiled().submit, X)",
     "InputError: run() takes a dict of input name -> array, got ndarray; call the model itself to "
     "pass arrays by position"),
    ("a timeout that is none", "told(compiled().submit, FEEDS, timeout=-1)",
     "OptionError: timeout: got -1, wanted seconds from 0 up, or None"),
    ("an array that is changed behind submit", """
        held, x = Held(), X.copy()
        changed = held.model.submit({"x": x, "w": W})
        x[...] = 0
        held.go()
        ok(changed.result())
        """, "True"),
    ("more runs than the queue takes", """
        held = Held()
        with jitcl.config.override(queue=2):
            runs = [held.model.submit(FEEDS) for _ in range(2)]
            said = told(held.model.submit, FEEDS, timeout=0)
            begin = time.monotonic()
            again = told(held.model.submit, FEEDS, timeout=0.2) == said
            waited = time.monotonic() - begin >= 0.2
            threading.Timer(0.05, held.go).start()
            runs.append(held.model.submit(FEEDS))
        said, again, waited, [ok(r.result()) for r in runs]
        """, "('BusyError: model g: 2 runs are queued, no more than JITCL_QUEUE allows', True, "
             "True, [True, True, True])"),
    ("submit, run, call, bind, prepare, report after close", """
        model = compiled()
        with model:
            pass
        calls = [(model.submit, FEEDS), (model.run, FEEDS), (model, X, W), (model.bind,),
                 (model.prepare, {}), (model.report,), (model.__enter__,)]
        {told(*call) for call in calls}
        """, "{'ClosedError: model g: this model was closed'}"),
    ("what was bound, after close", """
        model = compiled()
        bound = model.bind()
        bound.inputs["x"], bound.inputs["w"] = X, W
        kept, inputs, outputs = bound.run()["y"], bound.inputs, bound.outputs
        model.close()
        said = {told(bound.run), told(lambda: inputs["x"]), told(lambda: outputs["y"])}
        bound.close()
        said, ok({"y": kept})
        """, "({'ClosedError: model g, bound: this model was closed'}, True)"),
    ("closing what was bound", """
        model = compiled()
        with model.bind() as bound:
            pass
        told(bound.run), bool(right(model))
        """, "('ClosedError: model g, bound: this model was closed', True)"),
    ("a run that is fed in place of its result", """
        held = Held()
        said = told(compiled().run, {"x": held.run, "w": W})
        held.go()
        said.partition(": got ")[2]
        """, "<jitcl.Run of model g: under way>, which is no array"),
    ("a tensor of another dtype, shape", """
        kept = jitcl.compile(jitcl.parse(CAST), device=DEVICE).run({"x": X}, keep_on_device=True)
        said = told(compiled().run, {"x": kept["y"], "w": W})
        said.partition("wanted")[0].partition(": got")[0], told(compiled(8).run, {
            "x": compiled().run(FEEDS, keep_on_device=True)["y"], "w": W})
        """, """("InputError: input 'x' f32[64,256]",
        "InputError: input 'x' f32[8,256]: axis 0 is 64, wanted 8 (got shape (64, 256))")"""),
    ("mapped twice, and fed while it is mapped", """
        model = compiled()
        t = model.run(FEEDS, keep_on_device=True)["y"]
        with t.map() as array:
            said = told(t.map().__enter__), told(model.run, {"x": t, "w": W}), told(t.numpy)
        *said, ok({"y": t.numpy()})
        """, """("InputError: 'y' of model g is mapped already",
        "InputError: 'y' of model g is mapped for writing: nobody reads it meanwhile",
        "InputError: 'y' of model g is mapped for writing: nobody reads it meanwhile", True)"""),
    ("use after a mapping, and of what was made of it", """
        t = compiled().run(FEEDS, keep_on_device=True)["y"]
        with t.map() as array:
            part, hidden = array[1:], np.asarray(array)
        said = {told(lambda: array[0]), told(lambda: part + 1), told(lambda: part.sum())}
        t.close()
        del t
        gc.collect()
        {text.partition(", and")[0] for text in said}, bool(np.isfinite(hidden).all())
        """, """({"ClosedError: this array was mapped from 'y' of model g"}, True)"""),
    ("writing to a mapped input during a run", """
        t = compiled().run(FEEDS, keep_on_device=True)["y"]
        held = Held()
        queued = held.model.submit({"x": t, "w": W})
        said = told(t.map().__enter__)
        with t.map(write=False) as array:
            same = ok({"y": array})
        held.go()
        queued.result()
        with t.map() as array:
            array[0] = 0
        said.partition(", and")[0], same, t._readers
        """, """("BusyError: 'y' of model g is to be mapped for writing", True, 0)"""),
    ("closing a tensor, and its model, during a run that reads it", """
        model = compiled()
        t = model.run(FEEDS, keep_on_device=True)["y"]
        want = model.run({"x": t.numpy(), "w": W})["y"]
        held = Held()
        queued = held.model.submit({"x": t, "w": W})
        t.close()
        model.close()
        said = told(t.numpy), told(held.model.submit, {"x": t, "w": W})
        held.go()
        *said, queued.result()["y"].tobytes() == want.tobytes()
        """, """("ClosedError: 'y' of model g was closed, or the model was that computed it",
        "ClosedError: 'y' of model g was closed, or the model was that computed it", True)"""),
    ("a run that is cancelled lets go of its tensors", """
        t = compiled().run(FEEDS, keep_on_device=True)["y"]
        held = Held()
        queued = held.model.submit({"x": t, "w": W})
        cancelled = queued.cancel()
        with t.map():
            held.go()
        cancelled, t._readers
        """, "(True, 0)"),
    ("closing inside a mapping", """
        model = compiled()
        t = model.run(FEEDS, keep_on_device=True)["y"]
        with t.map() as array:
            model.close()
            said = told(lambda: array[0])
        said.partition(", and")[0], told(t.numpy)
        """, """("ClosedError: this array was mapped from 'y' of model g",
        "ClosedError: 'y' of model g was closed, or the model was that computed it")"""),
    ("a tensor of another context", """
        from jitcl.devices.select import open_device
        other = jitcl.compile(jitcl.parse(GRAPH), device=open_device(DEVICE))
        t = other.run(FEEDS, keep_on_device=True)["y"]
        model = compiled()
        want = model.run({"x": t.numpy(), "w": W})["y"]
        model.run({"x": t, "w": W})["y"].tobytes() == want.tobytes(), list(t.copies.values()) in (
            [], [1])
        """, "(True, True)"),
    ("what lies on no such device, or in a foreign context", """
        cpu = jitcl.compile(jitcl.parse(GRAPH), device="cpu")
        said = told(jitcl.DeviceTensor.from_cl_mem, None, "f4", X.shape, cpu)
        foreign = "another context"
        if DEVICE != "cpu":
            import pyopencl as cl
            model = compiled()
            context = cl.Context([model.device.session.handle])
            buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, X.nbytes)
            foreign = told(jitcl.DeviceTensor.from_cl_mem, buffer, "f4", X.shape, model)
        said.partition("wanted ")[2], "another context" in foreign
        """, "('a model on an OpenCL device', True)"),
    ("layouts: in any order, but not of other bytes", """
        model = compiled()
        run = model.submit({"x": np.asfortranarray(X), "w": W[::-1].copy()[::-1]})
        ok(run.result()), told(model.submit, {"x": X.astype(">f4"), "w": W})
        """, """(True, "InputError: input 'x' f32[64,256]: got dtype >f4, wanted float32; convert it
        with array.astype('float32')")"""),
    ("tensors, mappings and models that go in any order", """
        model = compiled()
        kept = [model.run(FEEDS, keep_on_device=True)["y"] for _ in range(4)]
        array = kept[0].map().__enter__()
        bound = model.bind()
        inputs = bound.inputs["x"]
        del model, bound
        gc.collect()
        kept.reverse()
        while kept:
            kept.pop(0)
            gc.collect()
        inputs[...] = 1
        bool(inputs.all())
        """, "True"),
    ("closing twice, and in two threads", """
        held = Held()
        threads = [threading.Thread(target=held.model.close) for _ in range(2)]
        [t.start() for t in threads]
        held.go()
        [t.join() for t in threads]
        held.model.close(), ok(held.run.result())
        """, "(None, True)"),
    ("closing during a run, with queued ones", """
        held = Held()
        queued = [held.model.submit(FEEDS) for _ in range(3)]
        threading.Timer(0.05, held.go).start()
        held.model.close()
        [r.done() and ok(r.result()) for r in (held.run, *queued)]
        """, "[True, True, True, True]"),
    ("closing, and cancelling what is queued", """
        held = Held()
        queued = held.model.submit(FEEDS)
        threading.Timer(0.05, held.go).start()
        held.model.close(cancel_queued=True)
        ok(held.run.result()), told(queued.result), repr(queued)
        """, "(True, 'CancelledError: ', '<jitcl.Run of model g: cancelled>')"),
    ("closing while another thread is in run", """
        model, seen = compiled(), []
        def work():
            while not seen:
                try:
                    assert ok(model.run(FEEDS))
                except jitcl.ClosedError as error:
                    seen.append(str(error).splitlines()[0].split(": ")[1])
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        time.sleep(0.05)
        model.close()
        [t.join() for t in threads]
        set(seen)
        """, "{'this model was closed'}"),
    ("a block that ends with an error", """
        held = Held()
        try:
            with held.model:
                queued = held.model.submit(FEEDS)
                threading.Timer(0.05, held.go).start()
                raise KeyError
        except KeyError:
            pass
        ok(held.run.result()), queued.cancelled()
        """, "(True, True)"),
    ("a callback that raises", """
        model = compiled()
        run = model.submit(FEEDS)
        wait = threading.Event()
        run.add_done_callback(lambda run: 1 / 0)
        run.add_done_callback(lambda run: wait.set())
        later = ok(model.submit(FEEDS).result())
        wait.wait(60), ok(run.result()), later, LOGGED[-1].split(" for ")[0]
        """, "(True, True, True, 'exception calling callback')"),
    ("a callback that closes the model", """
        held, seen = Held(), []
        queued = held.model.submit(FEEDS)
        def end(run):
            held.model.close()
            seen.append(told(held.model.submit, FEEDS, timeout=0))
        held.run.add_done_callback(end)
        held.go()
        results = ok(queued.result())
        held.model.close()
        results, told(held.model.bind), len(seen)
        """, "(True, 'ClosedError: model g: this model was closed', 1)"),
    ("a callback that submits to a full queue", """
        held, seen = Held(), []
        held.run.add_done_callback(lambda run: seen.append(told(held.model.submit, FEEDS)))
        with jitcl.config.override(queue=1):
            queued = held.model.submit(FEEDS)
            held.go()
            queued.result()
        seen
        """, "['BusyError: model g: 1 runs are queued, no more than JITCL_QUEUE allows, and a "
             "callback does not wait']"),
    ("a callback that waits for a later run", """
        held, seen = Held(), []
        later = held.model.submit(FEEDS)
        held.run.add_done_callback(lambda run: seen.append(told(later.result)))
        held.go()
        ok(later.result()), seen
        """, "(True, ['JitclError: <jitcl.Run of model g: queued>: a callback waits for a run that "
             "comes after it'])"),
    ("a callback of a run that is done", """
        run, seen = compiled().submit(FEEDS), []
        run.result()
        while run._queue.runs: pass
        run.add_done_callback(seen.append)
        seen == [run]
        """, "True"),
    ("cancel: done, under way, queued, twice", """
        held = Held()
        queued = held.model.submit(FEEDS)
        said = held.run.cancel(), queued.cancel(), queued.cancel()
        held.go()
        *said, ok(held.run.result()), held.run.cancel(), told(queued.result)
        """, "(False, True, True, True, False, 'CancelledError: ')"),
    ("a cancelled run holds no input", """
        held, model = Held(), None
        queued = held.model.submit(FEEDS)
        before = queued.nbytes == X.nbytes + W.nbytes
        queued.cancel()
        held.go()
        before, queued.nbytes, queued._work
        """, "(True, 0, None)"),
    ("results in other threads", """
        held, seen = Held(), []
        threads = [threading.Thread(target=lambda: seen.append(held.run.result()))
                   for _ in range(3)]
        [t.start() for t in threads]
        held.go()
        [t.join() for t in threads]
        len(seen), seen[0] is seen[1] is seen[2], ok(seen[0])
        """, "(3, True, True)"),
    ("await in two tasks, of which one gives up", """
        held = Held()
        async def impatient():
            try:
                await asyncio.wait_for(held.run, 0.05)
            except asyncio.TimeoutError:
                held.go()
                return "gave up"
        async def both():
            async def wait():
                return await held.run
            return await asyncio.gather(wait(), wait(), impatient())
        first, second, gave_up = asyncio.run(both())
        first is second, ok(first), gave_up
        """, "(True, True, 'gave up')"),
    ("await of a run that fails", """
        model = compiled()
        def fail(feeds):
            raise jitcl.DeviceError("kernel k of node n failed")
        model.run = fail
        async def wait():
            await model.submit(FEEDS)
        told(asyncio.run, wait())
        """, "DeviceError: kernel k of node n failed"),
    ("dropped while it is under way", """
        held, seen = Held(), []
        held.run.add_done_callback(lambda run: seen.append(ok(run.result())))
        gone = weakref.ref(held.run)
        held.run = None
        held.go()
        held.model.close()
        seen, gone()
        """, "([True], None)"),
    ("an error that nobody asked for", """
        model = compiled()
        def fail(feeds):
            raise jitcl.DeviceError("kernel k of node n failed")
        model.run = fail
        LOGGED.clear()
        model.submit(FEEDS)
        run = model.submit(FEEDS)
        run.exception()
        model.close()
        del run
        LOGGED
        """, "['a run of model g failed, and nobody asked for its result: DeviceError: kernel k of "
             "node n failed']"),
    ("a model that is dropped with runs under way", """
        held = Held()
        run, gone = held.run, weakref.ref(held.model)
        held.go()
        del held.model, held
        ok(run.result())
        """, "True"),
    ("what concurrent.futures waits for", """
        model = compiled()
        runs = [model.submit(FEEDS) for _ in range(5)]
        first = [ok(r.result()) for r in concurrent.futures.as_completed(runs)]
        first, len(concurrent.futures.wait(runs).done)
        """, "([True, True, True, True, True], 5)"),
)


def run(device: str, script: str) -> str:
    """What a process prints that ends well."""
    return test_forking.run(device, COMMON + textwrap.dedent(script))


@functools.cache
def outcomes(device: str) -> dict[str, str]:
    """What a process that goes through the table says of each row."""
    rows = "\n".join(f"row({name!r}, {code!r})" for name, code, _ in TABLE)
    said = run(device, rows)
    return dict(line.split(" => ", 1) for line in said.splitlines())


@pytest.mark.parametrize("device", ["cpu", *OPENCL[-1:]])
@pytest.mark.parametrize("name", [row[0] for row in TABLE])
def test_misuse(name: str, device: str) -> None:
    wanted = next(wanted for known, _, wanted in TABLE if known == name)
    assert outcomes(device)[name].split() == wanted.split()


@pytest.mark.slow
@pytest.mark.parametrize("device", OPENCL[:-1])
def test_misuse_on_other_devices(device: str) -> None:
    said = outcomes(device)
    assert {n: said[n].split() for n, _, _ in TABLE} == {n: w.split() for n, _, w in TABLE}


@pytest.mark.parametrize("device", SAFE)
def test_a_fork_with_queued_runs(device: str) -> None:
    """They are the parent's; a child has queues of its own."""
    run(device, """
    held = Held()
    queued = [held.model.submit(FEEDS) for _ in range(3)]
    called = []
    queued[0].add_done_callback(called.append)
    def in_child():
        assert told(queued[0].result).startswith("DeviceError: a run of model g was under way when")
        assert held.run.done() and not called
        assert told(held.run.result) == told(queued[2].result)
        held.go()
        assert ok(held.model.submit(FEEDS).result()) and ok(compiled().submit(FEEDS).result())
        held.model.close()
        return True
    assert child(in_child) == 0
    held.go()
    assert [ok(r.result()) for r in (held.run, *queued)] == [True] * 4
    """)


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", ALL)
def test_the_end_with_queued_runs(device: str) -> None:
    """They are computed, their callbacks called; what a thread goes on submitting is refused."""
    said = run(device, """
    import atexit
    atexit.register(lambda: print(bool(right(model)), told(model.submit, FEEDS), flush=True))
    model = compiled()
    for n in range(20):
        model.submit(FEEDS).add_done_callback(lambda run, n=n: print(n, ok(run.result())))
    def work():
        while True:
            told(other.submit, FEEDS)
    other = compiled()
    threading.Thread(target=work, daemon=True).start()
    """)
    assert said.splitlines() == [f"{n} True" for n in range(20)] + [
        "True ClosedError: model g: this process ends, and starts no more runs"]


def test_control_c_while_waiting_for_a_result() -> None:
    """The wait ends, the run goes on."""
    run("cpu", """
    held = Held()
    threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident,
                                                  signal.SIGINT)).start()
    try:
        held.run.result()
        assert False
    except KeyboardInterrupt:
        pass
    assert not held.run.done()
    held.go()
    assert ok(held.run.result())
    """)


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("device", present())
def test_threads_that_submit_get_the_bits_of_run(device: str) -> None:
    """In the order of each thread, from a queue that is often full."""
    assert run(device, """
    from concurrent.futures import ThreadPoolExecutor
    from jitcl import config
    model = compiled()
    def fed(k):
        return {"x": np.roll(X, k, 1), "w": W}
    alone = [model.run(fed(k))["y"].tobytes() for k in range(8)]
    def work(thread):
        runs = [(k % 8, model.submit(fed(k % 8))) for k in range(thread, thread + 16)]
        return all(run.result()["y"].tobytes() == alone[k] for k, run in runs)
    with config.override(queue=3), ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [True] * 4
    model.close()
    print("same bits")
    """) == "same bits\n"


def test_an_error_is_that_of_run() -> None:
    """Class and text, with what the graph calls its nodes."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"], "pick")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
         helper.make_tensor_value_info("i", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
    with jitcl.compile(helper.make_model(graph), device="cpu") as model:
        feeds = {"x": np.zeros(4, np.float32), "i": np.array([0, 9])}
        with pytest.raises(jitcl.InputError) as direct:
            model.run(feeds)
        with pytest.raises(jitcl.InputError) as later:
            model.submit(feeds).result()
        assert str(later.value) == str(direct.value) and "9" in str(direct.value)


def test_runs_wait_for_no_compiler() -> None:
    """`submit` with shapes that are new returns before they are compiled."""
    text = "graph @g(%x: f32[n,4]) {\n  %y = relu(%x)\n  return %y\n}"
    with jitcl.compile(jitcl.parse(text), device="cpu") as model:
        assert model.last is None
        run = model.submit({"x": -np.ones((3, 4), np.float32)})
        np.testing.assert_array_equal(run.result()["y"], np.zeros((3, 4)))
        assert model.last is not None
