/* SPDX-License-Identifier: Apache-2.0 */
/* What one optimizer step needs, in a backend's memory, so that no step waits for the host: gradients are measured,
 * and the update is decided and applied, by kernels that pass their numbers on in the records below. Everything that
 * changes from step to step is in those records, and `update_numbers` writes it there. The arguments of the kernels
 * do not change, so that a captured step can be replayed. It is plain C that C++ accepts. */
#ifndef TREK_TENSOR_UPDATE_H
#define TREK_TENSOR_UPDATE_H

#include <math.h>
#include <stdint.h>

#include "tensor/update_slice.h"

#ifdef __CUDACC__
#define TREK_ON_BOTH __host__ __device__ static inline
#else
#define TREK_ON_BOTH __attribute__((unused)) static inline
#endif

#define TREK_UPDATE_LRS 32    /* learning rates in one call of update_numbers */
#define TREK_UPDATE_TILE 2048 /* elements of a run that are processed together: the work of one block of threads */
#define TREK_CODE_BLOCK 256   /* elements of a state in u8 that share a scale (tensor/state_code.h); a tile has whole blocks */
#define TREK_UPDATE_SPANS TREK_DTYPE_COUNT /* update_norm: spans in one launch */

/* Dynamic loss scaling, as in torch.amp.GradScaler. One may serve several optimizers. In backend memory. */
typedef struct trek_update_scaler {
    float scale;             /* multiplies losses; a tensor may be a view of it */
    int32_t found_inf;       /* since the last update_scaler some gradient was inf or NaN */
    int64_t growth_tracker;  /* good steps since the scale was changed */
    double growth_factor, backoff_factor;
    int64_t growth_interval;
} trek_update_scaler;

/* Written by the host (update_numbers), in order with the work of the thread's stream. */
typedef struct trek_update_numbers {
    double max_norm;         /* of all gradients together; <= 0: not clipped */
    double factor;           /* multiplies gradients before everything else */
    double max_value;        /* gradients, unscaled and clipped, are limited to [-max_value, max_value]; <= 0: not limited */
    uint64_t rng_step;       /* of random ops that run in a captured step */
    int32_t first_lr, n_lrs; /* which of the learning rates follow */
    double lr[TREK_UPDATE_LRS];
} trek_update_numbers;

/* One update. In backend memory. */
typedef struct trek_update_state {
    double sum_squares;      /* by update_norm: of the unchanged gradients */
    int32_t finite;          /* by update_norm */
    int32_t skip;            /* by update_decide: nothing is updated, only gradients are set to zero */
    double norm; /* by update_decide: the norm of the gradients with the factor and without the loss's scale; NaN: not measured */
    double grad_scale;       /* by update_decide: gradients are multiplied by it (factor, clip factor / loss scale) */
    double value_limit;      /* by update_decide: scaled gradients are first limited to [-limit, limit]; <= 0: not limited */
    int64_t taken, skipped;  /* numbers of updates so far */
    double factor, max_norm, max_value; /* as in trek_update_numbers */
    uint64_t rng_step;
} trek_update_state;

/* Options of a group of the optimizer. In backend memory, written when they change (the learning rate has its own
 * array). */
typedef struct trek_update_group {
    double options[TREK_UPDATE_OPTIONS];
    uint32_t kept, positive;                    /* bits of states, as in a slice */
    int32_t by_step, maximize;                  /* by_step: kernels get step counts */
    int32_t corrected[TREK_UPDATE_CORRECTIONS]; /* indices of options; 0: none */
} trek_update_group;

/* One parameter and its history. In backend memory; once training has begun only update_decide writes it. */
typedef struct trek_update_segment {
    int64_t steps;           /* updates that it has had; skipped ones do not count */
    uint32_t written;        /* bit k: state k has been written */
    uint32_t fresh;          /* by update_decide; as in a slice */
    double correction[TREK_UPDATE_CORRECTIONS]; /* by update_decide */
} trek_update_segment;

/* How a backend updates elements: the class's function, or the number of a kernel of the device (update_kernel). */
typedef struct trek_update_kernel {
    trek_update_fn host;
    int device;
} trek_update_kernel;

/* A range of memory that is updated: one parameter. In backend memory. */
typedef struct trek_update_run {
    void *param;             /* f32 or f64; for a 16-bit parameter the f32 master copy */
    void *grad;              /* of param's dtype */
    void *state[TREK_UPDATE_STATES]; /* NULL: none */
    float *scale[TREK_UPDATE_STATES]; /* as in a slice */
    void *low;               /* the 16-bit parameter, rewritten from param; NULL: none */
    int64_t count;
    int64_t first;           /* position of element 0 in the arena, a multiple of 4 */
    int32_t dtype, low_dtype;
    int32_t state_dtype;     /* param's dtype, bf16 or u8 */
    int32_t segment, group;
    int64_t first_tile;      /* element i of the run is in tile first_tile + i / TREK_UPDATE_TILE */
    int64_t rows, cols;      /* its last two sizes, for classes of whole parameters; with fewer than two dimensions rows is 0 */
} trek_update_run;

/* The arguments of a backend's functions: addresses in backend memory, and counts. Passed to kernels by value. */
typedef struct trek_update {
    trek_update_state *state;
    trek_update_scaler *scaler;      /* NULL: the loss is not scaled */
    double *lr;                      /* [n_groups] */
    const trek_update_group *groups; /* [n_groups] */
    trek_update_segment *segments;   /* [n_segments] */
    const int32_t *segment_group;    /* [n_segments] -1: not in the current update */
    const trek_update_run *runs;     /* [n_runs] */
    const int32_t *tile_run;         /* [n_tiles] the run of each tile */
    int32_t n_groups, n_segments, n_runs;
    int64_t first_tile, n_tiles;     /* the tiles for update_apply: all of them, from 0 */
    trek_update_kernel kernel;
    bool coded;                      /* state is in u8, except for f64 parameters */
    const trek_update_run *host_runs;     /* copies of runs and groups in host memory: classes of whole parameters */
    const trek_update_group *host_groups; /* choose launches by them */
} trek_update;

/* Gradients to be measured. */
typedef struct trek_update_span {
    const void *data;
    int64_t count;
    trek_dtype dtype; /* F32 or F64 */
} trek_update_span;

/* Returns how many elements are measured together, of `total` in all spans: at most 1024 parts are added up, and some more. */
static inline int64_t trek_update_norm_chunk(int64_t total) { return (total / 1024 / 16384 + 1) * 16384; }

/* --- the arithmetic that every backend's kernels use --------------------------------------------------- */

/* Returns PyTorch's max_norm / (norm + 1e-6), at most 1; 1 for a norm that is not finite, or without a limit. */
TREK_ON_BOTH double trek_update_clip(double norm, double max_norm)
{
    if (!(max_norm > 0) || !(norm - norm == 0))
        return 1.0;
    double factor = max_norm / (norm + 1e-6);
    return factor < 1.0 ? factor : 1.0;
}

/* Returns 1 - value^steps: the weight that a moving average from 0 has after `steps` steps. */
TREK_ON_BOTH double trek_update_correction(double value, int64_t steps) { return 1.0 - pow(value, (double)steps); }

/* Does update_decide's work on the state, by one thread. measured: update_norm came before. */
TREK_ON_BOTH void trek_update_decide_state(trek_update_state *s, trek_update_scaler *scaler, bool measured)
{
    double unscale = scaler ? s->factor / (double)scaler->scale : s->factor;
    bool finite = !measured || s->finite;
    s->skip = scaler && !finite;
    s->norm = measured ? sqrt(s->sum_squares) * unscale : (double)NAN;
    double factor = measured && finite ? trek_update_clip(s->norm, s->max_norm) : 1.0;
    s->grad_scale = factor * unscale;
    s->value_limit = s->max_value > 0 ? s->max_value / s->grad_scale : 0;
    s->taken += !s->skip;
    s->skipped += s->skip;
    if (scaler)
        scaler->found_inf |= s->skip;
}

/* Does update_decide's work on segment k, after the state. */
TREK_ON_BOTH void trek_update_decide_segment(const trek_update *update, int32_t k)
{
    if (update->segment_group[k] < 0 || update->state->skip)
        return;
    trek_update_segment *segment = &update->segments[k];
    const trek_update_group *group = &update->groups[update->segment_group[k]];
    segment->steps++;
    segment->fresh = group->kept & ~segment->written;
    segment->written |= group->kept;
    for (int c = 0; c < TREK_UPDATE_CORRECTIONS; c++)
        if (group->corrected[c])
            segment->correction[c] = trek_update_correction(group->options[group->corrected[c]], segment->steps);
}

/* Makes the slice of a whole run, after update_decide. */
TREK_ON_BOTH void trek_update_slice_of(const trek_update *update, const trek_update_run *run, bool zero_grads,
                                       trek_update_slice *s)
{
    const trek_update_group *group = &update->groups[run->group];
    const trek_update_segment *segment = &update->segments[run->segment];
    s->param = run->param;
    s->grad = run->grad;
    s->count = run->count;
    s->kept = group->kept;
    s->fresh = segment->fresh;
    s->positive = group->positive;
    for (int k = 0; k < TREK_UPDATE_STATES; k++) {
        s->state[k] = group->kept >> k & 1 ? run->state[k] : 0;
        s->scale[k] = run->scale[k];
    }
    s->options[0] = update->lr[run->group];
    for (int k = 1; k < TREK_UPDATE_OPTIONS; k++)
        s->options[k] = group->options[k];
    for (int k = 0; k < TREK_UPDATE_CORRECTIONS; k++)
        s->correction[k] = segment->correction[k];
    s->step = group->by_step ? segment->steps : 0;
    s->grad_scale = group->maximize ? -update->state->grad_scale : update->state->grad_scale;
    s->zero_grad = zero_grads;
    s->value_limit = update->state->value_limit;
    s->low = run->low;
    s->low_dtype = (trek_dtype)run->low_dtype;
    s->state_dtype = (trek_dtype)run->state_dtype;
    s->first = run->first;
}

/* Does update_scaler's work (torch.amp.GradScaler.update): lowers the scale after an overflow, raises it after enough
 * good steps. */
TREK_ON_BOTH void trek_update_scaler_adapt(trek_update_scaler *s)
{
    if (s->found_inf) {
        s->scale = (float)(s->scale * s->backoff_factor);
        s->growth_tracker = 0;
    } else if (++s->growth_tracker >= s->growth_interval) {
        float grown = (float)(s->scale * s->growth_factor);
        s->scale = grown - grown == 0 ? grown : s->scale;
        s->growth_tracker = 0;
    }
    s->found_inf = 0;
}

#endif
