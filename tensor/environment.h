/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, read strictly: what is not understood is said in the log, and the default holds. Internal. */
#ifndef TREK_TENSOR_ENVIRONMENT_H
#define TREK_TENSOR_ENVIRONMENT_H

#include "tensor/common.h"

/* A whole number from low to high, decimal or 0x..; `unset` where the variable is not set, empty or no such number. */
long trek_environment_number(const char *name, long low, long high, long unset);

/* The place of the value among n choices; `unset` where the variable is not set, empty or none of them. */
int trek_environment_choice(const char *name, const char *const *choices, int n, int unset);

#endif
