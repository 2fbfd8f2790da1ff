/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library's own. Internal. */
#ifndef TREK_TENSOR_THREAD_START_H
#define TREK_TENSOR_THREAD_START_H

#include <pthread.h>

#include "tensor/common.h"

TREK_BEGIN

/* pthread_create, with all signals blocked in the new thread: they are for the program's threads. Returns what that does. */
int trek_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

TREK_END

#endif
