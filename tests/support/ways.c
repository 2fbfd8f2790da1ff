/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ways.h"

#include <stdio.h>
#include <stdlib.h>

#include "tensor/backend.h"
#include "tensor/cpu/use.h"
#include "tensor/pool.h"
#include "tensor/products_way.h"
#include "tensor/rank_context.h"
#include "tests/support/support.h"

enum { MOST_WAYS = 8 };

typedef struct way {
    const char *isa;
    int place;              /* of the instruction set */
    trek_products_way bf16; /* how products of bf16 are computed */
    int threads;
    char name[64];
} way;

static way list[MOST_WAYS];
static int count;
static int own, present; /* the instruction set that the library has chosen, and the one in use */
static trek_pool *pools[2];

static void free_pools(void)
{
    trek_rank_here.pool = NULL;
    for (int k = 0; k < 2; k++)
        trek_pool_free(&pools[k]);
}

static void add(const char *isa, int place, trek_products_way bf16)
{
    static const char *const kinds[] = { "", " with tiles", " with dot products of bf16" };
    for (int threads = 1; threads <= 2; threads++) {
        way *w = &list[count++];
        *w = (way){ .isa = isa, .place = place, .bf16 = bf16, .threads = threads };
        snprintf(w->name, sizeof w->name, "%s%s, %d thread%s", isa, kinds[bf16], threads, threads > 1 ? "s" : "");
    }
}

static void find_ways(void)
{
    static const char *const isas[] = { "baseline", "avx2", "avx512" };
    const bool tiles = trek_products_chosen(TREK_BF16) == TREK_PRODUCTS_WAY_TILES; /* the variable says so */
    for (int k = 0; k < 3; k++) {
        if (!trek_cpu_use(isas[k]))
            continue;
        add(isas[k], k, tiles ? TREK_PRODUCTS_WAY_TILES : TREK_PRODUCTS_WAY_FMA);
        if (k == 2 && !tiles && trek_cpu_has_dots())
            add(isas[k], k, TREK_PRODUCTS_WAY_DOTS);
    }
    trek_cpu_use(NULL);
    own = present = trek_cpu_backend()->isa;
    for (int k = 0; k < 2; k++)
        if (!(pools[k] = trek_pool_new(k + 1, 0))) {
            fprintf(stderr, "%s\n", trek_error());
            exit(99);
        }
    atexit(free_pools);
}

int ways(void)
{
    if (!test_on_cpu() || trek_backends[TREK_CPU] != trek_cpu_backend())
        return 1;
    if (!count)
        find_ways();
    return count;
}

bool way_taken(int k, trek_dtype dtype, bool threads, int turn)
{
    if (ways() == 1)
        return k == 0;
    if (list[k].bf16 == TREK_PRODUCTS_WAY_DOTS && dtype != TREK_BF16)
        return false;
    return threads || list[k].threads == 1 + (int)((unsigned)(turn + list[k].place) % 2);
}

void way_use(int k)
{
    if (ways() == 1)
        return;
    int isa = k < 0 ? own : list[k].place;
    if (isa != present) /* to fill the table takes longer than most calls */
        trek_cpu_use(k < 0 ? NULL : list[k].isa);
    present = isa;
    trek_products_choose(TREK_BF16, k < 0 ? TREK_PRODUCTS_WAY_MEASURED : list[k].bf16);
    trek_rank_here.pool = k < 0 ? NULL : pools[list[k].threads - 1];
}

const char *way_name(int k) { return ways() == 1 ? "" : list[k].name; }
