/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted means of float arrays over the processes of a communicator, with 32 or fewer bits for each value.
 *
 * With 32 bits it is an all_reduce. With fewer it is an all_gather of the codes of all processes, which every process
 * adds up in rank order: a value is rounded once, and all processes get the same bits. Each of P processes then sends
 * its codes P - 1 times, while an all_reduce sends the floats 2 (P - 1) / P times. From the P on at which this is not
 * less (15 with 4 bits, 8 with 8, 4 with 16), an all_reduce is used instead. Between machines P is the number of
 * machines. */
#ifndef TREK_DISTRIBUTED_OUTER_EXCHANGE_H
#define TREK_DISTRIBUTED_OUTER_EXCHANGE_H

#include "distributed/comm/comm.h"

/* Used by one thread at a time, which alone calls the communicator meanwhile. */
typedef struct trek_exchange {
    trek_comm *comm; /* borrowed; NULL: a single process */
    int64_t sent;    /* bytes that this process has sent, counted for a ring, without the overhead of the calls */
    void *heads;     /* of all processes */
    char *room;      /* for what is sent; it grows to the need of the largest call and is kept */
    size_t room_bytes;
} trek_exchange;

/* Does not communicate. Fails with MEMORY. */
trek_status trek_exchange_init(trek_exchange *exchange, trek_comm *comm);
/* Also clears a struct that is all zeros, or whose init has failed. */
void trek_exchange_clear(trek_exchange *exchange);

/* Returns the number of bits in which n floats are sent if `bits` are requested: bits or 32. It is the same on all
 * processes; for a single process it is 32. */
int trek_exchange_bits(const trek_exchange *exchange, int64_t n, int bits);

/* Replaces values (n) by the mean of all processes' values with weights w / W, where W is the sum of the weights. All
 * processes get the same bits. A process with weight 0 contributes nothing, not even NaN, and gets the mean, too. All
 * processes must call it with the same n and bits; weights must be finite and at least 0. error (n; may be NULL) is
 * this process's compression error (compress.h); it is used if fewer than 32 bits are sent and the weight is above 0.
 * A single process keeps its values.
 *
 * Processes announce weights and errors to each other before data are touched. So a wrong argument (ARGUMENT), a lack
 * of memory (MEMORY) or weights that are all 0 (ARGUMENT) is an error on all processes that names the process, and
 * the communicator remains usable. Other errors are those of communicators. After any error values are unchanged, and
 * so is `error`, except for rounding. */
trek_status trek_exchange_mean(trek_exchange *exchange, float *values, float *error, int64_t n, int bits, double weight);
/* Takes part in the others' next call without data, because this process has failed before it. All get an error that
 * names this process. Returns an error here, too; a single process gets `why`. */
trek_status trek_exchange_decline(trek_exchange *exchange, trek_status why);

#endif
