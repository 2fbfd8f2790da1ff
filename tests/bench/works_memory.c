/* SPDX-License-Identifier: Apache-2.0 */
/* Works that memory limits, measured beside the machine's stream rate: AdamW,
 * softmax, layer norm, and all-reduce between two ranks of this process. */
#include "bench.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

/* -- AdamW -- */

enum { ADAM_COUNT = 64000000, ADAM_CHECKED = 3 };

typedef struct adam_state {
    trek_var *param;
    trek_optimizer *optimizer;
} adam_state;

static trek_var *filled(int64_t rows, int64_t columns, uint32_t seed, float shift, float scale, bool requires_grad)
{
    trek_tensor *tensor = trek_tensor_empty(rows ? trek_dims(rows, columns) : trek_dims(columns), TREK_F32, trek_cpu(0));
    if (!tensor)
        return NULL;
    bench_fill(trek_tensor_data(tensor), trek_tensor_numel(tensor), seed, shift, scale);
    trek_var *var = trek_var_new(tensor, requires_grad);
    trek_tensor_release(tensor);
    return var;
}

/* A sum with weights of every 97th value, over the root of their number: what the peer must find, too. */
static double digest(const trek_tensor *tensor)
{
    const float *values = trek_tensor_data(tensor);
    double sum = 0, count = 0;
    for (int64_t i = 0; i < trek_tensor_numel(tensor); i += 97, count++)
        sum += (double)values[i] * (double)bench_uniform(9, (uint32_t)i);
    return count > 0 ? sum / sqrt(count) : 0;
}

static void adam_close(void *state)
{
    adam_state *s = state;
    trek_optimizer_free(&s->optimizer);
    trek_var_release(s->param);
    free(s);
}

static void adam_run(void *state, int64_t times)
{
    adam_state *s = state;
    for (int64_t t = 0; t < times; t++)
        trek_optimizer_step(s->optimizer);
}

static void *adam_open(const bench_work *work)
{
    (void)work;
    adam_state *s = calloc(1, sizeof *s);
    trek_params *params = trek_params_new();
    if (!s || !params)
        return NULL;
    s->param = filled(0, ADAM_COUNT, 1, 0, 1, true);
    trek_var *grad = filled(0, ADAM_COUNT, 2, 0, 0.01f, false);
    trek_var_set_grad(s->param, grad);
    trek_var_release(grad);
    trek_params_add(params, "parameter", s->param);
    s->optimizer = trek_optimizer_new(trek_adamw(&(trek_adam_opts){ .lr = 1e-3 }), params);
    trek_params_free(&params);
    adam_run(s, ADAM_CHECKED);
    if (trek_error_status() == TREK_OK)
        bench_check(digest(trek_var_data(s->param)));
    return s;
}

/* -- softmax and layer norm -- */

typedef struct row_case {
    int64_t rows, columns;
    bool norm;
} row_case;

typedef struct row_state {
    trek_var *x, *weight, *bias;
    bool norm;
} row_state;

static void row_close(void *state)
{
    row_state *s = state;
    trek_var_release(s->x);
    trek_var_release(s->weight);
    trek_var_release(s->bias);
    free(s);
}

static trek_var *row_apply(row_state *s)
{
    return s->norm ? trek_layer_norm(s->x, 1, s->weight, s->bias, 1e-5) : trek_softmax(s->x, -1);
}

static void *row_open(const bench_work *work)
{
    const row_case *c = work->arg;
    row_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (row_state){ filled(c->rows, c->columns, 1, 0, 3, false), filled(0, c->columns, 2, 1, 0.1f, false),
                      filled(0, c->columns, 3, 0, 0.1f, false), c->norm };
    trek_scope scope = trek_scope_begin();
    trek_var *y = row_apply(s);
    if (y)
        bench_check(digest(trek_var_data(y)));
    trek_scope_end(scope);
    return s;
}

static void row_run(void *state, int64_t times)
{
    for (int64_t t = 0; t < times; t++) {
        trek_scope scope = trek_scope_begin();
        row_apply(state);
        trek_scope_end(scope);
    }
}

/* -- all-reduce between two ranks -- */

typedef struct reduce_state {
    trek_comm *comms[2];
    trek_tensor *tensors[2];
    pthread_t thread;
    bool started;
    sem_t go, done;
    int64_t times;       /* of the other rank's next turn; < 0: end */
    trek_status status;  /* the other rank's */
} reduce_state;

static void reduce_times(reduce_state *s, int rank, int64_t times)
{
    for (int64_t t = 0; t < times && trek_error_status() == TREK_OK; t++)
        trek_comm_all_reduce(s->comms[rank], s->tensors[rank], TREK_REDUCTION_SUM);
}

static void *reduce_thread(void *arg)
{
    reduce_state *s = arg;
    for (;;) {
        while (sem_wait(&s->go) != 0)
            continue;
        if (s->times < 0)
            return NULL;
        reduce_times(s, 1, s->times);
        s->status = trek_error_status();
        sem_post(&s->done);
    }
}

static void reduce_run(void *state, int64_t times)
{
    reduce_state *s = state;
    s->times = times;
    sem_post(&s->go);
    reduce_times(s, 0, times);
    while (sem_wait(&s->done) != 0)
        continue;
    if (s->status != TREK_OK)
        trek_fail(s->status, "rank 1 failed: %s", trek_status_description(s->status));
}

static void reduce_close(void *state)
{
    reduce_state *s = state;
    if (s->started) {
        s->times = -1;
        sem_post(&s->go);
        pthread_join(s->thread, NULL);
    }
    for (int rank = 0; rank < 2; rank++) {
        trek_comm_free(&s->comms[rank]);
        trek_tensor_release(s->tensors[rank]);
    }
    sem_destroy(&s->go);
    sem_destroy(&s->done);
    free(s);
}

/* One sum is checked; then all is zero, or the values would grow without end. */
static void *reduce_open(const bench_work *work)
{
    int64_t count = *(const int64_t *)work->arg;
    reduce_state *s = calloc(1, sizeof *s);
    if (!s || sem_init(&s->go, 0, 0) != 0 || sem_init(&s->done, 0, 0) != 0)
        return NULL;
    trek_comm_local(NULL, 2, s->comms);
    for (int rank = 0; rank < 2; rank++)
        s->tensors[rank] = trek_tensor_full(trek_dims(count), rank + 1, TREK_F32, trek_cpu(rank));
    if (trek_error_status() != TREK_OK || pthread_create(&s->thread, NULL, reduce_thread, s) != 0)
        return NULL;
    s->started = true;
    reduce_run(s, 1);
    for (int rank = 0; rank < 2; rank++) {
        float *values = trek_tensor_data(s->tensors[rank]);
        bench_check(values[0]);
        bench_check(values[count - 1]);
        for (int64_t i = 0; i < count; i++)
            values[i] = 0;
    }
    return s;
}

static const row_case softmax_case = { 1024, 768, false }, norm_case = { 1024, 768, true };
static const row_case softmax_near = { 1021, 771, false }, norm_near = { 1021, 771, true };
static const int64_t reduce_large = 25 << 20, reduce_small = 1;

#define ROW_WORK(work_name, work_what, row)                                                            \
    { .name = work_name, .what = work_what, .bytes = 8.0 * 1024 * 768, .near = true, \
      .open = row_open, .run = row_run, .close = row_close, .arg = row }

const bench_work bench_works_memory[] = {
    { .name = "adamw", .what = "AdamW over 64 M parameters", .bytes = 28.0 * ADAM_COUNT,
      .open = adam_open, .run = adam_run, .close = adam_close },
    ROW_WORK("softmax", "softmax of 1024 rows of 768", &softmax_case),
    ROW_WORK("layer-norm", "layer norm of 1024 rows of 768", &norm_case),
    ROW_WORK("softmax-near", "softmax of 1021 rows of 771", &softmax_near),
    ROW_WORK("layer-norm-near", "layer norm of 1021 rows of 771", &norm_near),
    { .name = "reduce-large", .what = "all-reduce of 100 MiB between 2 ranks of one process", .bytes = 4.0 * 4 * (25 << 20),
      .open = reduce_open, .run = reduce_run, .close = reduce_close, .arg = &reduce_large },
    { .name = "reduce-small", .what = "all-reduce of 4 bytes between 2 ranks of one process",
      .open = reduce_open, .run = reduce_run, .close = reduce_close, .arg = &reduce_small },
    { 0 },
};
