/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a rank. The caller is one of them.
 *
 * Workers spin for more work, longer while it comes often, then sleep. They never spin if the process's ranks x
 * threads exceed its cores. No function here allocates, except trek_pool_new. */
#ifndef TREK_TENSOR_POOL_H
#define TREK_TENSOR_POOL_H

#include "tensor/cores.h"
#include "tensor/status.h"

typedef struct trek_pool trek_pool;

/* Makes a pool. threads >= 1 includes the caller, so that 1 makes no thread. place: the index of the caller among the
 * process's threads that compute; the others follow (tensor/cores.h). Fails with MEMORY, or with STATE if a thread
 * cannot start. */
trek_pool *trek_pool_new(int threads, int place);
void trek_pool_free(trek_pool **pool);
int trek_pool_threads(const trek_pool *pool);

/* Returns the calling thread's pool (trek_rank_here.pool), otherwise the process's default one (TREK_THREADS,
 * otherwise the cores that it may use), made when it is first needed; if that fails, a pool of one thread. */
trek_pool *trek_pool_here(void);
/* Sets how many threads of all ranks compute at once; above the number of cores, spinning stops. */
void trek_pool_set_busy(int threads);

/* Calls fn(arg, begin, end) for parts that cover [0, count), on the threads of the pool, and returns when all are
 * done. Parts are multiples of `grain` (except the last), and more than there are threads if there are that many
 * grains; fewer than 2 grains run only on the caller. The division depends only on count, grain and the number of
 * threads. If it is called from inside a part, it runs on the calling thread. Results whose bits matter must not
 * depend on the division. */
void trek_parallel(int64_t count, int64_t grain, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg);

#endif
