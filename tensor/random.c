/* SPDX-License-Identifier: Apache-2.0 */
/* The generator: a seed for the process, a step and a draw number for each thread. */
#include "tensor/random_internal.h"

#include <stdatomic.h>

#include "tensor/op.h"
#include "tensor/rank_context.h"

static atomic_ullong seed;

void trek_seed(uint64_t value)
{
    atomic_store(&seed, value);
    trek_rank_here.rng_step = 0;
    trek_rank_here.rng_draw = 0;
    trek_rank_here.rng_stream = 0;
}

uint64_t trek_rng_seed(void) { return atomic_load_explicit(&seed, memory_order_relaxed); }

/* For numbers of a rank's own, or of a grain's, which any rank may run. They are 2^40 elements apart. */
static int64_t rank_place(void)
{
    int64_t grain = trek_rank_here.grain;
    return (grain > 0 ? grain - 1 : (int64_t)trek_job_here.process * 1024 + trek_rank_here.rank) << 40;
}

int64_t trek_rng_first_row(int64_t rows)
{
    const trek_rank_context *here = &trek_rank_here;
    if (here->rows < 0)
        return 0;
    return here->rows > 0 && rows % here->rows == 0 ? here->first_sample * (rows / here->rows) : rank_place();
}

/* A tensor whose first dimension is this rank's part of the batch, or a multiple of it (samples x tokens, flattened),
 * is keyed by its position in the global batch; anything else by rank or grain. */
static int64_t first_element(const trek_tensor *like)
{
    const trek_rank_context *here = &trek_rank_here;
    if (here->rows < 0)
        return 0;
    if (like->ndim > 0 && here->rows > 0 && like->sizes[0] % here->rows == 0)
        return here->first_sample * (like->numel / here->rows);
    return rank_place();
}

trek_rng_draw trek_rng_next(const trek_tensor *like)
{
    trek_rank_context *here = &trek_rank_here;
    return (trek_rng_draw){ .seed = trek_rng_seed() ^ here->rng_stream, .step = (uint32_t)here->rng_step,
                            .draw = (uint32_t)here->rng_draw++, .first_element = first_element(like) };
}

void trek_rng_attrs(const trek_tensor *like, trek_attrs *attrs)
{
    trek_rng_draw draw = trek_rng_next(like);
    attrs->i[0] = (int64_t)draw.seed;
    attrs->i[1] = draw.step;
    attrs->i[2] = draw.draw;
    attrs->i[3] = draw.first_element;
}
