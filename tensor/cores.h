/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of the process, and threads that stay on one core (TREK_PIN=1). */
#ifndef TREK_TENSOR_CORES_H
#define TREK_TENSOR_CORES_H

#include <pthread.h>

#include "tensor/common.h"

TREK_BEGIN

#define TREK_MAX_THREADS 1024 /* of a pool, and of a process */

int trek_cores(void); /* how many the process could use when this was first called */
int trek_threads_wanted(void); /* TREK_THREADS, otherwise the number of cores: the threads that all ranks of the process have
                                * together */

/* If TREK_PIN=1, keeps the calling thread on one core, as number `place` of the process's threads. Threads are
 * counted over all processes of the machine and start again at the first core after the last one. A refusal by the
 * system is a warning. */
void trek_pin_thread(int place);

/* If TREK_PIN=1, lets a thread that is started with these attributes use all the process's cores, whatever its
 * creator may use. Returns true if it changed anything. */
bool trek_pin_release(pthread_attr_t *attributes);

TREK_END

#endif
