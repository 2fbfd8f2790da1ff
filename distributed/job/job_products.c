/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/job/job_products.h"

#include <string.h>

#include "tensor/backend.h"
#include "tensor/products_way.h"

static trek_status choose(trek_comm *comm, bool tiles)
{
    double all = tiles;
    trek_status status = comm ? trek_comm_all_reduce_scalar(comm, &all, TREK_REDUCTION_MIN) : TREK_OK;
    if (status == TREK_OK)
        trek_products_choose(TREK_F32, all > 0 ? TREK_PRODUCTS_WAY_TILES : TREK_PRODUCTS_WAY_FMA);
    return status;
}

trek_status trek_job_products_choose(trek_comm *comm)
{
    trek_products_choose(TREK_F32, TREK_PRODUCTS_WAY_MEASURED); /* not what an earlier job has agreed on */
    return choose(comm, trek_products_in_use() == TREK_PRODUCTS_WAY_TILES);
}

trek_status trek_job_products_fix(trek_comm *comm)
{
    bool faster;
    double all = trek_cpu_has_tiles(&faster);
    trek_status status = comm ? trek_comm_all_reduce_scalar(comm, &all, TREK_REDUCTION_MIN) : TREK_OK;
    if (status != TREK_OK)
        return status;
    trek_products_fix();
    if (trek_products_asked(TREK_F32) == TREK_PRODUCTS_WAY_MEASURED)
        trek_products_choose(TREK_F32, TREK_PRODUCTS_WAY_FMA);
    if (trek_products_asked(TREK_BF16) == TREK_PRODUCTS_WAY_MEASURED)
        trek_products_choose(TREK_BF16, all > 0 ? TREK_PRODUCTS_WAY_TILES : TREK_PRODUCTS_WAY_FMA);
    return TREK_OK;
}

const char *trek_job_products_name(void) { return trek_products_in_use() == TREK_PRODUCTS_WAY_TILES ? "tiles" : "fma"; }

trek_status trek_job_products_resume(trek_comm *comm, const char *name)
{
    const trek_products_way asked = trek_products_asked(TREK_F32);
    bool tiles = name && strcmp(name, "tiles") == 0, faster;
    if (!name)
        return TREK_OK;
    if (asked != TREK_PRODUCTS_WAY_MEASURED)
        return choose(comm, asked == TREK_PRODUCTS_WAY_TILES);
    if (tiles && !trek_cpu_has_tiles(&faster)) {
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "checkpoint_load: the run computed products of f32 by tiles (AMX), which this machine does "
                         "not have; it goes on by multiply-add, with other bits");
        tiles = false;
    }
    return choose(comm, tiles);
}
