/* SPDX-License-Identifier: Apache-2.0 */
/* What processes of a world give to collectives, and what comes of it: numbers that every dtype holds, so that the order of sums
 * does not show. Each check says on stdout what is wrong. */
#ifndef TREK_TESTS_COMM_EXCHANGED_H
#define TREK_TESTS_COMM_EXCHANGED_H

#include "distributed/comm/comm.h"
#include "tests/support/processes.h"

/* The group of the world that the part belongs to; NULL, and the error is printed. engine: NULL leaves the choice to trek. */
trek_comm *exchanged_join(const part *me, const char *engine, double deadline);
/* What process r gives. A new reference. */
trek_tensor *exchanged_numbers(int r, int64_t count, trek_dtype dtype);
/* Whether the tensor has `count` elements from `from` on of what all of a world come to. */
bool exchanged_same(const trek_tensor *tensor, int64_t from, int64_t count, int world, trek_reduction op, const char *what);
/* Reductions of several dtypes; broadcasts, gathers and a barrier. */
bool exchanged_reduces(trek_comm *comm, int64_t count);
bool exchanged_moves(trek_comm *comm, int64_t count);
/* f32 sums are those of the rank order, to the bit; over Gloo and MPI this holds for small ones, and large ones are the same
 * everywhere, within roundings of it. */
bool exchanged_in_order(trek_comm *comm, uint32_t count);
/* The role of a process that reduces 64 MiB again and again, until one dies ("kill": this one), or its link. */
int exchanged_play_large(const part *me);

#endif
