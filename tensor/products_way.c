/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/products_way.h"

#include <pthread.h>
#include <stdatomic.h>

#include "tensor/environment.h"

static trek_products_way of_variables[2];
static atomic_int chosen[2] = { TREK_PRODUCTS_WAY_MEASURED, TREK_PRODUCTS_WAY_MEASURED };
static atomic_bool fixed;

static void read_variables(void)
{
    static const char *const names[] = { "fma", "tiles", "dots" };
    of_variables[0] = (trek_products_way)trek_environment_choice("TREK_F32_PRODUCTS", names, 2, TREK_PRODUCTS_WAY_MEASURED);
    of_variables[1] = (trek_products_way)trek_environment_choice("TREK_BF16_PRODUCTS", names, 3, TREK_PRODUCTS_WAY_MEASURED);
}

trek_products_way trek_products_asked(trek_dtype dtype)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_variables);
    return of_variables[dtype == TREK_BF16];
}

trek_products_way trek_products_chosen(trek_dtype dtype)
{
    int way = atomic_load_explicit(&chosen[dtype == TREK_BF16], memory_order_relaxed);
    return way == TREK_PRODUCTS_WAY_MEASURED ? trek_products_asked(dtype) : (trek_products_way)way;
}

void trek_products_choose(trek_dtype dtype, trek_products_way way)
{
    atomic_store_explicit(&chosen[dtype == TREK_BF16], way, memory_order_relaxed);
}

void trek_products_fix(void) { atomic_store_explicit(&fixed, true, memory_order_relaxed); }

bool trek_products_are_fixed(void) { return atomic_load_explicit(&fixed, memory_order_relaxed); }
