/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a rank. The caller is one of them. Internal.
 *
 * Workers spin for more work, longer while it comes often, then sleep; they
 * never spin when the process's ranks x threads exceed its cores. No function here allocates after
 * trek_pool_new. */
#ifndef TREK_TENSOR_POOL_H
#define TREK_TENSOR_POOL_H

#include "tensor/cores.h"
#include "tensor/status.h"

typedef struct trek_pool trek_pool;

/* threads >= 1, the caller included: 1 makes no thread. place: of the caller among the process's threads that compute, the
 * others follow (tensor/cores.h). MEMORY, or STATE when a thread cannot start. */
trek_pool *trek_pool_new(int threads, int place);
void trek_pool_free(trek_pool **pool);
int trek_pool_threads(const trek_pool *pool);

/* The calling thread's pool (trek_rank_here.pool), else the process's default
 * one (TREK_THREADS, else the cores it may use), made at first need; where that
 * fails, a pool of one. */
trek_pool *trek_pool_here(void);
/* How many threads of all ranks compute at once; spinning stops above the cores. */
void trek_pool_set_busy(int threads);

/* Calls fn(arg, begin, end) for parts of [0, count) that cover it, on the
 * threads of the pool, and returns when all are done. Parts are multiples of
 * `grain` (the last excepted), and more than there are threads where there are
 * as many grains; fewer than 2 grains run on the caller alone. The split depends
 * on count, grain and the number of threads only. Called from
 * inside a part, it runs on the calling thread. Work for which bits matter must
 * not depend on the split. */
void trek_parallel(int64_t count, int64_t grain, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg);

#endif
