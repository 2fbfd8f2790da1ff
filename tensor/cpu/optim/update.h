/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the CPU's optimizer steps from records in its table. */
#ifndef TREK_TENSOR_CPU_OPTIM_UPDATE_H
#define TREK_TENSOR_CPU_OPTIM_UPDATE_H

#include "tensor/backend.h"

void trek_cpu_update_functions(trek_backend *b);

#endif
