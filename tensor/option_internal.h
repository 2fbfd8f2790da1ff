/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of option structs: 0 gives the default, TREK_ZERO gives 0. */
#ifndef TREK_TENSOR_OPTION_INTERNAL_H
#define TREK_TENSOR_OPTION_INTERNAL_H

#include "tensor/status.h"

static inline double trek_option(double value, double otherwise)
{
    return value == TREK_ZERO ? 0 : value == 0 ? otherwise : value;
}

static inline int64_t trek_option_integer(int64_t value, int64_t otherwise)
{
    return value == TREK_ZERO ? 0 : value == 0 ? otherwise : value;
}

/* The padding of a dimension that is left out behind one that is given: it is refused, as one may take it for 0 or for the same.
 */
#define TREK_NOT_SAID INT64_MIN
#define TREK_NOT_SAID_TEXT "a later dimension's number is left out; give each dimension its own, TREK_ZERO for 0"

/* Writes out the padding of `dims` dimensions: 0 where none before is given. TREK_ZERO stays. */
static inline void trek_option_paddings(int64_t *to, const int64_t *from, int dims)
{
    bool given = false;
    for (int d = 0; d < dims; d++) {
        to[d] = from[d] ? from[d] : given ? TREK_NOT_SAID : 0;
        given = given || from[d] != 0;
    }
}

/* ARGUMENT where one of them is negative or not said. */
trek_status trek_option_check_paddings(const char *name, const char *what, const int64_t *padding, int dims);

#endif
