/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers of each kind that parameters can be divided with. */
#ifndef TREK_TESTS_DIVIDED_OPTIMIZERS_H
#define TREK_TESTS_DIVIDED_OPTIMIZERS_H

#include "optim/optimizers.h"

enum { DIVIDED_OPTIMIZERS = 6 };

static inline trek_optimizer_spec divided_optimizer(int k)
{
    const trek_optimizer_spec specs[DIVIDED_OPTIMIZERS] = {
        trek_adamw(&(trek_adam_opts){ .lr = 0.01 }), trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }),
        trek_lamb(&(trek_lamb_opts){ .lr = 0.01 }), trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 0.01 }), TREK_U8),
        trek_adafactor(&(trek_adafactor_opts){ .lr = 0.01 }), trek_lion(&(trek_lion_opts){ .lr = 0.002 }),
    };
    return specs[k];
}

#endif
