/* SPDX-License-Identifier: Apache-2.0 */
/* One launch, between the call (fake_launch.cc) and its threads (fake_threads.cc). */
#ifndef TREK_FAKE_KERNEL_H
#define TREK_FAKE_KERNEL_H

#include "fake_internal.h"

namespace fake {

enum { DYNAMIC_SHARED = MOST_SHARED, MAX_BLOCK = 1024 };

struct Kernel {
    const char *name;
    bool barriers;
    dim3 grid, block;
    size_t shared_bytes;
    std::function<void()> body;
    const void *function;
    std::vector<unsigned char> arguments; /* where PTX runs */
    int device;
    unsigned long random;          /* the order of blocks */
};

void run_kernel(const Kernel &kernel); /* on the stream's thread */
bool runs_ptx();                       /* TREK_TEST_PTX names a folder (fake_ptx.cc) */
void run_ptx(const Kernel &kernel);    /* the same, by what nvcc made of it */
const char *running_kernel();          /* the calling thread's; null: none */

} // namespace fake

#endif
