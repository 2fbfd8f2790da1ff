/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks may divide among themselves instead of each having all of it. */
#ifndef TREK_DISTRIBUTED_SHARD_H
#define TREK_DISTRIBUTED_SHARD_H

#include "tensor/types.h"

TREK_BEGIN

/* What ranks divide among themselves, so that each has only a part of it (ZeRO, Rajbhandari et al. 2020). */
typedef enum trek_shard {
    TREK_SHARD_NONE, /* nothing */
    TREK_SHARD_STATE, /* the optimizer's state, and the f32 copies of 16-bit parameters (ZeRO's first stage) */
    TREK_SHARD_GRADIENTS, /* that, and gradients (ZeRO's second stage) */
    TREK_SHARD_PARAMETERS /* that, and parameters (ZeRO's third stage) */
} trek_shard;

TREK_END

#endif
