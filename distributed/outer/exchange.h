/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted means of float arrays over the processes of a communicator, in full or in fewer bits. Internal.
 *
 * 32 bits are an all_reduce. Fewer are an all_gather of everyone's codes, which everyone adds up in rank order: a value is
 * rounded once, and all have the same bits. Of P processes each then sends P - 1 times its codes, where an all_reduce sends
 * 2 (P - 1) / P times the floats; from the P on at which that is no more (15 with 4 bits, 8 with 8, 4 with 16) it is an
 * all_reduce all the same. Between machines P is the number of machines. */
#ifndef TREK_DISTRIBUTED_OUTER_EXCHANGE_H
#define TREK_DISTRIBUTED_OUTER_EXCHANGE_H

#include "distributed/comm/comm.h"

/* Used by one thread at a time, the only one that calls the communicator meanwhile. */
typedef struct trek_exchange {
    trek_comm *comm; /* borrowed; NULL: a process by itself */
    int64_t sent;    /* bytes that this process has sent, as a ring sends them, what calls need beside the data left out */
    void *heads;     /* of all processes */
    char *room;      /* for what travels; grows to the largest call's need, and stays */
    size_t room_bytes;
} trek_exchange;

/* No communication. MEMORY. */
trek_status trek_exchange_init(trek_exchange *exchange, trek_comm *comm);
/* Also of one that is all zeros, or whose init failed. */
void trek_exchange_clear(trek_exchange *exchange);

/* The bits in which n floats travel if they are to travel in `bits`: those, or 32. The same on all processes. A process by
 * itself: 32. */
int trek_exchange_bits(const trek_exchange *exchange, int64_t n, int bits);

/* values (n) become the mean of all processes' values with weights w / W, W their sum: the same bits on all. A process of weight
 * 0 contributes nothing, not even NaN, and gets the mean, too. All processes call it with the same n and bits; weights are
 * finite and at least 0. error (n; may be NULL): of this process's compression, compress.h; it is used where fewer than 32
 * bits travel and the weight is above 0.
 * A process by itself keeps its values.
 *
 * Processes tell each other weights and whether all is well before data are touched: a wrong argument, no memory (MEMORY), or
 * weights that are all 0 (ARGUMENT) is an error of all, which names the process, and the communicator can be used
 * further. Others are those of communicators. After any error values are as before, and error, too, but for rounding. */
trek_status trek_exchange_mean(trek_exchange *exchange, float *values, float *error, int64_t n, int bits, double weight);
/* Comes to the others' next call without data, because this process failed before it: all get an error that names it. Returns
 * one, too: `why`, of a process by itself. */
trek_status trek_exchange_decline(trek_exchange *exchange, trek_status why);

#endif
