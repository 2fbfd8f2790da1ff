/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer step from records (tensor/update.h) on the CPU, which is the reference for the kernels of devices.
 * Also updates of slices: a class's function on the threads of the pool. */
#include "tensor/cpu/optim/update.h"

#include <string.h>

#include "tensor/pool.h"
#include "tensor/state_round.h"
#include "tensor/tensor_internal.h"

enum {
    GRAIN = 16384,   /* elements: whole blocks of states in u8 */
    BLOCK = 2048 /* elements that are in the cache when gradients are limited and 16-bit copies are written */
};

static trek_status update_numbers(trek_device device, const trek_update *update, const trek_update_numbers *numbers)
{
    (void)device;
    update->state->factor = numbers->factor;
    update->state->max_norm = numbers->max_norm;
    update->state->max_value = numbers->max_value;
    update->state->rng_step = numbers->rng_step;
    for (int k = 0; k < numbers->n_lrs; k++)
        update->lr[numbers->first_lr + k] = numbers->lr[k];
    return TREK_OK;
}

static trek_status update_norm(trek_device device, const trek_update *update, const trek_update_span *spans, int n)
{
    (void)device;
    update->state->sum_squares = 0;
    update->state->finite = 1;
    for (int k = 0; k < n; k++) {
        double sum;
        bool finite;
        trek_cpu_backend()->sum_squares(trek_cpu(0), spans[k].dtype, spans[k].data, spans[k].count, &sum, &finite);
        update->state->sum_squares += sum;
        update->state->finite &= finite;
    }
    return TREK_OK;
}

static trek_status update_decide(trek_device device, const trek_update *update, bool measured)
{
    (void)device;
    trek_update_decide_state(update->state, update->scaler, measured);
    for (int k = 0; k < update->n_segments; k++)
        trek_update_decide_segment(update, k);
    return TREK_OK;
}

typedef struct slice_job {
    trek_update_fn update;
    trek_dtype dtype;
    const trek_update_slice *slice;
} slice_job;

static void update_part(void *arg, int64_t begin, int64_t end)
{
    const slice_job *job = arg;
    job->update(job->dtype, job->slice, begin, end);
}

static bool has_low_state(const slice_job *job)
{
    return job->slice->state_dtype == TREK_BF16 || job->slice->state_dtype == TREK_U8;
}

/* Updates elements [begin, end), at most TREK_STATE_BLOCK, whose states are in f32 meanwhile. */
static void update_low_state(const slice_job *job, int64_t begin, int64_t end)
{
    float rows[TREK_UPDATE_STATES * TREK_STATE_BLOCK] __attribute__((aligned(64)));
    const trek_update_slice *whole = job->slice;
    trek_update_slice s = *whole;
    trek_cpu_backend()->read_states(whole, begin, end - begin, rows);
    s.param = (float *)whole->param + begin;
    s.grad = (float *)whole->grad + begin;
    for (int k = 0; k < TREK_UPDATE_STATES; k++)
        s.state[k] = whole->state[k] ? rows + k * TREK_STATE_BLOCK : NULL;
    s.count = end - begin;
    job->update(job->dtype, &s, 0, s.count);
    trek_cpu_backend()->write_states(whole, begin, end - begin, rows);
}

/* Limits gradients and writes copies block by block while these are in the cache; the kernel does not know of that. */
static void update_part_in_blocks(void *arg, int64_t begin, int64_t end)
{
    const slice_job *job = arg;
    const trek_update_slice *s = job->slice;
    const trek_backend *backend = trek_cpu_backend();
    bool low_state = has_low_state(job);
    int64_t block = low_state ? TREK_STATE_BLOCK : BLOCK;
    for (int64_t at = begin, next; at < end; at = next) {
        next = at + block < end ? at + block : end;
        if (s->value_limit > 0)
            backend->clamp_abs(trek_cpu(0), job->dtype, (char *)s->grad + at * trek_item_size[job->dtype], next - at,
                               s->value_limit);
        if (low_state)
            update_low_state(job, at, next);
        else
            job->update(job->dtype, s, at, next);
        if (s->low)
            backend->write_low(s->low, s->low_dtype, (const float *)s->param + at, at, next - at);
    }
}

static void update_slice(trek_device device, const trek_update_kernel *kernel, trek_dtype dtype, const trek_update_slice *slice)
{
    (void)device;
    slice_job job = { kernel->host, dtype, slice };
    bool in_blocks = slice->low || slice->value_limit > 0 || has_low_state(&job);
    trek_parallel(slice->count, GRAIN, in_blocks ? update_part_in_blocks : update_part, &job);
}

static trek_status update_apply(trek_device device, const trek_update *update, bool zero_grads)
{
    (void)device;
    for (int k = 0; k < update->n_runs; k++) {
        const trek_update_run *run = &update->runs[k];
        if (update->state->skip) {
            if (zero_grads)
                memset(run->grad, 0, (size_t)run->count * trek_dtype_size((trek_dtype)run->dtype));
            continue;
        }
        trek_update_slice slice;
        trek_update_slice_of(update, run, zero_grads, &slice);
        update_slice(trek_cpu(0), &update->kernel, (trek_dtype)run->dtype, &slice);
    }
    return TREK_OK;
}

static trek_status update_scaler(trek_device device, trek_update_scaler *scaler)
{
    (void)device;
    trek_update_scaler_adapt(scaler);
    return TREK_OK;
}

void trek_cpu_update_functions(trek_backend *b)
{
    b->update_numbers = update_numbers;
    b->update_norm = update_norm;
    b->update_decide = update_decide;
    b->update_apply = update_apply;
    b->update_scaler = update_scaler;
    b->update_slice = update_slice;
}
