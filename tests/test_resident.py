"""Memory that only the start of a library needs goes back to the system."""

import subprocess
import sys

import pytest

from jitcl.devices.cpu.resident import unchanged

SMAPS = """\
7f0000000000-7f0000001000 r--p 00000000 08:01 42 /usr/lib/libllvmlite.so
Rss:                   4 kB
Anonymous:             0 kB
7f0000001000-7f0000009000 r-xp 00001000 08:01 42 /usr/lib/libllvmlite.so
Rss:                  32 kB
Anonymous:             0 kB
7f0000009000-7f000000a000 r--p 00009000 08:01 42 /usr/lib/libllvmlite.so
Rss:                   4 kB
Anonymous:             4 kB
7f000000a000-7f000000b000 rw-p 0000a000 08:01 42 /usr/lib/libllvmlite.so
Rss:                   4 kB
Anonymous:             0 kB
7f000000b000-7f000000c000 r--p 00000000 08:01 43 /usr/lib/libother.so
Rss:                   4 kB
Anonymous:             0 kB
7f000000c000-7f000000d000 r-xp 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
"""

RESIDENT = """
import llvmlite.binding as llvm
from jitcl.devices.cpu.resident import give_back

def resident():
    '''KiB of LLVM's library in memory, and KiB of its pages that were written to.'''
    rss = private = 0
    ours = False
    for line in open("/proc/self/smaps"):
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            ours = line.rstrip().endswith("libllvmlite.so")
        elif ours and head[0] == "Rss:":
            rss += int(head[1])
        elif ours and head[0] == "Anonymous:":
            private += int(head[1])
    return rss, private

before, written = resident()
give_back()
after, kept = resident()
assert kept == written > 0, (kept, written)
assert after - kept < 0.1 * (before - written), (before, after, written)
llvm.initialize_native_target()
module = llvm.parse_assembly("define i32 @f() {\\n  ret i32 7\\n}")
print(before, after, str(module).count("ret i32 7"), llvm.get_host_cpu_name() != "")
"""


def test_only_pages_as_in_the_file_go_back() -> None:
    found = unchanged(SMAPS.splitlines(), "libllvmlite.so")
    assert found == [(0x7F0000000000, 0x7F0000001000), (0x7F0000001000, 0x7F0000009000)]


def test_a_mapping_that_counts_nothing_is_left_alone() -> None:
    assert unchanged([SMAPS.splitlines()[0], SMAPS.splitlines()[9]], "libllvmlite.so") == []


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux only")
def test_llvm_works_on_with_its_pages_gone() -> None:
    done = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after, returns, named = done.stdout.split()
    assert int(after) < int(before) and (returns, named) == ("1", "True")
