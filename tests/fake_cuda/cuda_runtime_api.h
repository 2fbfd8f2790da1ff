/* SPDX-License-Identifier: Apache-2.0 */
/* The other name under which the runtime's functions are included. */
#include "cuda_runtime.h"
