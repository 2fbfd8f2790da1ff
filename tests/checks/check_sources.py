#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What library sources must not do: end the program, allocate around trek's allocator, and, in distributed/, ask the system for what
distributed/system/ is there for or keep state that is no process's; and what they must carry."""
import pathlib
import re
import sys

floors = ["tensor", "autograd", "nn", "data", "optim", "graph", "onnx", "distributed", "monitor"]
root = pathlib.Path(sys.argv[1])
# abort() is what TREK_ON_ERROR=abort asks for, in status.c alone.
ending = re.compile(r"(?<![>.*\w])\b(abort|exit|_exit|_Exit|quick_exit|assert|raise)\s*\(")
allocating = re.compile(r"(?<![>.*\w])\b(malloc|calloc|realloc|strdup|strndup|asprintf|vasprintf|aligned_alloc|posix_memalign|free)\s*\(")
# Where memory comes from, and what a thread keeps for good: it would count as in use when the allocator is replaced.
home_of_memory = {"tensor/memory.c", "tensor/status.c", "tensor/rank_context.c", "tensor/ranges.c", "data/batch_here.c", "tensor/trace.c", "tensor/intern.c", "tensor/debug.c", "autograd/autocast.c",
                  "autograd/tape.c", "autograd/offload_values.c", "autograd/offload_move.c"}
# Time, threads, the network and the process: tests run distributed/ where all these are simulated.
system = "distributed/system/"
asking = re.compile(r"\b(pthread_\w+|PTHREAD_\w+|epoll_\w+|eventfd_\w+|SYS_futex)\b|"
                    r"(?<![>.*\w])\b(poll|ppoll|select|pselect|nanosleep|clock_nanosleep|usleep|sleep|clock_gettime|gettimeofday|time|sched_yield|syscall|eventfd|timerfd_\w+|"
                    r"socket|socketpair|accept4?|connect|listen|bind|shutdown|recv|recvfrom|recvmsg|send|sendto|sendmsg|getaddrinfo|fork|atexit|on_exit|getenv|"
                    r"secure_getenv|getpid|getppid|gethostname|dlopen|dlsym|mtx_\w+|cnd_\w+|thrd_\w+|"
                    r"trek_clock_ns|trek_thread_start|trek_plugin_open|trek_environment_number|trek_environment_choice)\s*\(")
foreign = {"distributed/comm/mpi/mpi_plugin.c"} # what only wraps a library's calls


def is_state(line):
    """Whether the line begins a variable that lives as long as the program, and can change."""
    found = re.match(r"\s*static\s+([^=;{\[]*)[=;{\[]", line) or re.match(r"(?!typedef|struct|union|enum|extern|return|else|do)([A-Za-z_][\w\s*]*\s\*?\w+)\s*(\[[^\]]*\]\s*)*(=|;)", line)
    if not found or "(" in found.group(1):
        return False
    kind = found.group(1).rsplit("*", 1)[-1]
    return not re.search(r"\bconst\b", kind) if "*" in found.group(1) else not re.search(r"\bconst\b", found.group(1))


failures, files = [], 0
for folder in floors:
    for source in sorted((root / folder).rglob("*.[ch]")):
        name, text = str(source.relative_to(root)), source.read_text()
        files += 1
        if not text.startswith("/* SPDX-License-Identifier: Apache-2.0 */"):
            failures.append(f"{name}: no licence line")
        # keep line numbers while comments and strings go
        blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
        code = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)
        if "pthread_cond_timedwait" in code and "CLOCK_REALTIME" in code:
            failures.append(f"{name}: a timed wait by the clock that people set, not by the monotonic one")
        for number, line in enumerate(code.split("\n"), 1):
            if "pthread_mutex_timedlock" in line and name != "tensor/thread_start.h":
                failures.append(f"{name}:{number}: a timed wait by the clock that people set: trek_mutex_lock_until has the monotonic one")
            call = ending.search(line)
            if call and not (name == "tensor/status.c" and call.group(1) == "abort"):
                failures.append(f"{name}:{number}: {call.group(1)}()")
            call = allocating.search(line)
            if call and name not in home_of_memory and "cuda" not in name:
                failures.append(f"{name}:{number}: {call.group(1)}() instead of trek's allocator")
            if folder != "distributed" or name.startswith(system) or name in foreign:
                continue
            call = asking.search(line)
            own = call and re.search(rf"\b(?!return)\w+ {call.group(2)}[,;)]", code) # a parameter of that name
            if call and not own:
                failures.append(f"{name}:{number}: {call.group(0).rstrip('( ')}: {system} has what is to be called instead")
            if is_state(line):
                failures.append(f"{name}:{number}: a variable that changes; TREK_PER_PROCESS and TREK_PER_THREAD of {system} say whose it is")
if files < 40:
    failures.append(f"only {files} sources were found: is this check reading the tree?")
print("\n".join(failures) or f"{files} sources")
sys.exit(bool(failures))
