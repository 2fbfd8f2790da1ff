/* SPDX-License-Identifier: Apache-2.0 */
/* For functions with many calls in a row that may fail, and nothing to undo: TRY returns the status of a call that fails. */
#ifndef TREK_TENSOR_TRY_INTERNAL_H
#define TREK_TENSOR_TRY_INTERNAL_H

#include "tensor/status.h"

#define TRY(call)                                                                                                                \
    do {                                                                                                                         \
        trek_status status_ = (call);                                                                                            \
        if (status_ != TREK_OK)                                                                                                  \
            return status_;                                                                                                      \
    } while (0)

#endif
