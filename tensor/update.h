/* SPDX-License-Identifier: Apache-2.0 */
/* What one optimizer step needs, in a backend's memory, so that no step waits for
 * the host: gradients are measured, the update is decided and applied by kernels
 * that hand their numbers on in the records below. All that changes from step to
 * step is in those records and written there by `update_numbers`; the arguments of
 * the kernels stay the same, so that a captured step can be replayed. Internal; plain
 * C that C++ understands. */
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

#define TREK_UPDATE_LRS 32    /* learning rates that one call of update_numbers carries */
#define TREK_UPDATE_TILE 2048 /* elements of a run that belong together: the work of one block of threads */
#define TREK_CODE_BLOCK 256   /* elements of a state in u8 that share a scale (tensor/state_code.h); a tile has whole ones */
#define TREK_UPDATE_SPANS TREK_DTYPE_COUNT /* update_norm: spans that one launch measures */

/* Dynamic loss scaling, as torch.amp.GradScaler. One may serve several optimizers. In backend memory. */
typedef struct trek_update_scaler {
    float scale;             /* what losses are multiplied by; a tensor may be a view of it */
    int32_t found_inf;       /* since the last update_scaler: some gradient was inf or NaN */
    int64_t growth_tracker;  /* good steps since the scale was changed */
    double growth_factor, backoff_factor;
    int64_t growth_interval;
} trek_update_scaler;

/* Written by the host (update_numbers), in order with the work of the thread's stream. */
typedef struct trek_update_numbers {
    double max_norm;         /* of all gradients together; <= 0: not clipped */
    double factor;           /* what gradients are multiplied by before all else */
    double max_value;        /* gradients, unscaled and clipped, are brought into [-max_value, max_value]; <= 0: not */
    uint64_t rng_step;       /* of random ops that run in a captured step */
    int32_t first_lr, n_lrs; /* which of the learning rates follow */
    double lr[TREK_UPDATE_LRS];
} trek_update_numbers;

/* One update. In backend memory. */
typedef struct trek_update_state {
    double sum_squares;      /* by update_norm: of the gradients as they are */
    int32_t finite;          /* by update_norm */
    int32_t skip;            /* by update_decide: nothing is updated, only gradients are zeroed */
    double norm; /* by update_decide: of the gradients by the factor and without the loss's scale; NaN: not measured */
    double grad_scale;       /* by update_decide: gradients are multiplied by it (factor, clip factor / loss scale) */
    double value_limit;      /* by update_decide: scaled gradients are first brought into [-limit, limit]; <= 0: not */
    int64_t taken, skipped;  /* updates so far */
    double factor, max_norm, max_value; /* as in the numbers */
    uint64_t rng_step;
} trek_update_state;

/* Options of a group of the optimizer. In backend memory, written when they change (the learning rate has its own array). */
typedef struct trek_update_group {
    double options[TREK_UPDATE_OPTIONS];
    uint32_t kept, positive;                    /* states, as in a slice */
    int32_t by_step, maximize;                  /* by_step: kernels are given step counts */
    int32_t corrected[TREK_UPDATE_CORRECTIONS]; /* options; 0: none */
} trek_update_group;

/* One parameter: what its updates have come to. In backend memory, written by update_decide alone once training goes on. */
typedef struct trek_update_segment {
    int64_t steps;           /* updates it has had; skipped ones do not count */
    uint32_t written;        /* bit k: state k has been written */
    uint32_t fresh;          /* by update_decide; as in a slice */
    double correction[TREK_UPDATE_CORRECTIONS]; /* by update_decide */
} trek_update_segment;

/* How a backend updates elements: the class's function, or a number of the device's own (update_kernel). */
typedef struct trek_update_kernel {
    trek_update_fn host;
    int device;
} trek_update_kernel;

/* A stretch of memory that is updated: one parameter. In backend memory. */
typedef struct trek_update_run {
    void *param;             /* f32 or f64; of a 16-bit parameter the f32 master copy */
    void *grad;              /* of param's dtype */
    void *state[TREK_UPDATE_STATES]; /* NULL: none */
    float *scale[TREK_UPDATE_STATES]; /* as in a slice */
    void *low;               /* the 16-bit parameter, rewritten from param; NULL: none */
    int64_t count;
    int64_t first;           /* place of element 0 in the arena, a multiple of 4 */
    int32_t dtype, low_dtype;
    int32_t state_dtype;     /* param's dtype, bf16 or u8 */
    int32_t segment, group;
    int64_t first_tile;      /* element i of the run is in tile first_tile + i / TREK_UPDATE_TILE */
    int64_t rows, cols;      /* its last two sizes, for classes of whole parameters; of fewer than two dimensions: rows is 0 */
} trek_update_run;

/* What the functions of a backend are given: addresses in backend memory, and counts. Kernels take it by value. */
typedef struct trek_update {
    trek_update_state *state;
    trek_update_scaler *scaler;      /* NULL: the loss is not scaled */
    double *lr;                      /* [n_groups] */
    const trek_update_group *groups; /* [n_groups] */
    trek_update_segment *segments;   /* [n_segments] */
    const int32_t *segment_group;    /* [n_segments] -1: takes no part in the present update */
    const trek_update_run *runs;     /* [n_runs] */
    const int32_t *tile_run;         /* [n_tiles] the run that a tile belongs to */
    int32_t n_groups, n_segments, n_runs;
    int64_t first_tile, n_tiles;     /* update_apply is about these: all of them, from 0 */
    trek_update_kernel kernel;
    bool coded;                      /* state is kept in u8, but for f64 parameters */
    const trek_update_run *host_runs;     /* the same as runs and groups, in the host's memory: classes of whole parameters */
    const trek_update_group *host_groups; /* launch what they say */
} trek_update;

/* Gradients to be measured. */
typedef struct trek_update_span {
    const void *data;
    int64_t count;
    trek_dtype dtype; /* F32 or F64 */
} trek_update_span;

/* --- the arithmetic that every backend's kernels share ------------------------------------------------- */

/* PyTorch's max_norm / (norm + 1e-6), at most 1; 1 for a norm that is not finite, or no limit. */
TREK_ON_BOTH double trek_update_clip(double norm, double max_norm)
{
    if (!(max_norm > 0) || !(norm - norm == 0))
        return 1.0;
    double factor = max_norm / (norm + 1e-6);
    return factor < 1.0 ? factor : 1.0;
}

/* 1 - value^steps: what a moving average from 0 lacks after so many steps. */
TREK_ON_BOTH double trek_update_correction(double value, int64_t steps) { return 1.0 - pow(value, (double)steps); }

/* What update_decide does to the state, by one thread. measured: update_norm came before. */
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

/* What update_decide does to segment k, after the state. */
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

/* The slice of a whole run, after update_decide. */
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

/* What update_scaler does (torch.amp.GradScaler.update): less after an overflow, more after enough good steps. */
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
