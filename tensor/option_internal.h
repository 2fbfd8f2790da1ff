/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of option structs: 0 gives the default, TREK_ZERO gives 0. */
#ifndef TREK_TENSOR_OPTION_INTERNAL_H
#define TREK_TENSOR_OPTION_INTERNAL_H

#include "tensor/common.h"

static inline double trek_option(double value, double otherwise)
{
    return value == TREK_ZERO ? 0 : value == 0 ? otherwise : value;
}

static inline int64_t trek_option_integer(int64_t value, int64_t otherwise)
{
    return value == TREK_ZERO ? 0 : value == 0 ? otherwise : value;
}

#endif
