/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of the process, and threads that stay on one of them (TREK_PIN=1). Internal. */
#ifndef TREK_TENSOR_CORES_H
#define TREK_TENSOR_CORES_H

#include <pthread.h>

#include "tensor/common.h"

TREK_BEGIN

#define TREK_MAX_THREADS 1024 /* of a pool, and of a process */

int trek_cores(void); /* that the process might use when this was first asked */
int trek_threads_wanted(void); /* TREK_THREADS, else as many as cores: what the process's ranks have together */

/* Where TREK_PIN=1: keeps the calling thread on one core, the place-th of the process's threads: those are counted on over the
 * processes of the machine and, past the last core, again from the first. What the system refuses is a warning. */
void trek_pin_thread(int place);

/* Where TREK_PIN=1: a thread that is started with it may use all the process's cores, whatever its maker may use.
 * True if it did anything. */
bool trek_pin_release(pthread_attr_t *attributes);

TREK_END

#endif
