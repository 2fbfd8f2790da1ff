/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts of host memory: what some threads together have in use, and how much they may have. A thread's tensors, variables
 * and tape nodes count to the account that it has joined, wherever they are freed. Objects and tables (trek_alloc), and what a
 * thread's pool allocates, do not count.
 *
 * A request that would exceed the limit fails with MEMORY. Requests of at most 1024 bytes whose size the compiler knows
 * (trek_block_alloc_fixed) are served from the cache without a look at the limit; the next larger one counts them.
 *
 * Accounts need the caches of threads: with TREK_CACHE=off or TREK_DEBUG=1 nothing is counted. */
#ifndef TREK_TENSOR_MEMORY_ACCOUNT_H
#define TREK_TENSOR_MEMORY_ACCOUNT_H

#include "tensor/memory.h"

typedef struct trek_memory_account trek_memory_account;

/* Makes an account for at most n threads, which has no limit. Returns NULL on failure (MEMORY). */
trek_memory_account *trek_memory_account_new(int n);
/* All other threads must have left. Sets *account to NULL. */
void trek_memory_account_free(trek_memory_account **account);
/* Returns whether accounts count in this process. */
bool trek_memory_account_counts(void);

/* Lets the calling thread join an account as its member k, 0 to n - 1, which no other thread is. A thread that has joined
 * another account leaves it. Fails with MEMORY. */
trek_status trek_memory_account_join(trek_memory_account *account, int k);
/* Sets whether the calling thread works for its account: only then is it held to the limit, and noted in the peak. Joining sets
 * it. Returns what it was. */
bool trek_memory_account_work(bool works);
/* Lets the calling thread leave its account, if it has joined one. */
void trek_memory_account_leave(void);

/* Begins to count: from now on what the members have in use is `held` bytes, and what they allocate in addition. Called while
 * they are idle. */
void trek_memory_account_begin(trek_memory_account *account, int64_t held);
/* Sets the limit in bytes; 0: none. */
void trek_memory_account_limit(trek_memory_account *account, int64_t bytes);
/* Returns how many bytes the members have in use. */
int64_t trek_memory_account_used(const trek_memory_account *account);
/* Returns the most that they have had in use since the last reset. */
int64_t trek_memory_account_peak(const trek_memory_account *account);
void trek_memory_account_reset_peak(trek_memory_account *account);

/* Memory that a thread has from elsewhere (pages.h) counts as if it had allocated it. Returns the calling thread as the one that
 * has it; NULL: nothing is counted. It may be given to `use` by any thread, as long as the process lives. */
struct trek_block_cache *trek_memory_user(void);
/* Notes that the user has so many bytes more, or less. Returns false, and notes nothing, if that would exceed the limit of its
 * account. `surely`: the limit does not count. */
bool trek_memory_use(struct trek_block_cache *user, int64_t bytes, bool surely);

#endif
