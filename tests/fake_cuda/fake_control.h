/* SPDX-License-Identifier: Apache-2.0 */
/* What tests ask of the fake runtime, beyond what CUDA has. C and C++.
 *
 * Environment, read when the runtime is first used:
 *   TREK_FAKE_GPUS        how many devices (2); 0: none; -1: no driver
 *   TREK_FAKE_GPU_MEMORY  bytes of each, with K, M or G (1G)
 *   TREK_FAKE_SHARED      bytes of shared memory that a block may opt in to (227K, which is also the most)
 *   TREK_FAKE_L2          bytes of the L2 cache that the devices say they have (4M)
 *   TREK_FAKE_LATE        seed of the delays before work and of the order in which
 *                         blocks and graph nodes run; 0: no delays; unset: short ones, sometimes
 *   TREK_FAKE_FAIL        "cudaMalloc:3,cudaLaunchKernel:10:700": the n-th call of the
 *                         function fails, with the error given or the likely one; "cudaMalloc:3+": so do all
 *                         later calls; the function "kernel" is a fault while the n-th kernel runs
 *   TREK_FAKE_CAPABILITY  the devices' compute capability (9.0)
 *   TREK_FAKE_SM_90A      1: the devices say that they have code for sm_90a. Kernels without C++ code then run and do nothing
 *   TREK_FAKE_PEER        0: devices cannot reach each other's memory
 *   TREK_FAKE_RACES       1: in a TSan build, races among the threads of a block are reported
 *   TREK_FAKE_PROTECT     0: device memory is not protected from the host */
#ifndef TREK_FAKE_CONTROL_H
#define TREK_FAKE_CONTROL_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that are allocated on a device; of pinned host memory for device -1. */
size_t trek_fake_device_bytes(int device);
/* Whether device memory faults when the host touches it; else why not. */
bool trek_fake_memory_protected(const char **why);
/* Replaces the failures asked for, counts from now on; NULL: none. */
void trek_fake_fail(const char *specification);
/* How often the function was called since the start; counted while failures are asked for. */
long trek_fake_calls(const char *function);
/* What TREK_TEST_PTX_COUNTS gets at exit is what kernels do from here on. */
void trek_fake_forget_counts(void);
/* Kernels that have run on the device. */
long trek_fake_kernels(int device);
/* Bytes that were copied to devices from host memory that is not pinned. */
long trek_fake_pageable(void);
/* What cuBLASLt was last asked for candidates with: 0 to 3: the alignments of A, B, C and D in bytes, 4: how many candidates. */
unsigned trek_fake_asked(int what);
/* On which devices this process has contexts: a bit for each. */
unsigned trek_fake_contexts(void);
/* No stream of the device starts anything more until it is let go. */
void trek_fake_hold(int device);
void trek_fake_let_go(int device);
/* Changes TREK_FAKE_LATE. */
void trek_fake_late(unsigned seed);
/* The last thing found wrong in a kernel, "" for none; `text` gets it. */
void trek_fake_report(char *text, size_t size);
/* Streams and events not destroyed yet. */
int trek_fake_streams(void);
int trek_fake_events(void);

#ifdef __cplusplus
}
#endif
#endif
