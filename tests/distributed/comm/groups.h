/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that are split at random, against plain lists of who belongs where: the same of every engine. */
#ifndef TREK_TESTS_COMM_GROUPS_H
#define TREK_TESTS_COMM_GROUPS_H

#include "distributed/comm/comm.h"

/* All ranks of comm call it with the same seed. In each round colours and keys are drawn; in each group all collectives are made,
 * in some groups more than in others, the group is split again, and all of it is freed in an order of each rank's own. Says on
 * stderr what is wrong. */
bool groups_are_right(trek_comm *comm, uint32_t seed, int rounds);

#endif
