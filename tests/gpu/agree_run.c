/* SPDX-License-Identifier: Apache-2.0 */
/* A process of gpu_agree: attention, and training steps of GPT-2, by one way of attention. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tensor/backend.h"
#include "tests/bench/gpu/bench.h"
#include "tests/gpu/agree.h"
#include "tests/support/support.h"

const char *const agree_way_names[AGREE_WAYS] = { "own", "wgmma", "cudnn" };
const char *const agree_mode_names[AGREE_MODES] = { "eager", "captured", "eager-kept", "captured-kept" };
trek_device gpu_device;

int64_t agree_elements(const agree_sizes *s) { return s->batch * s->length * s->heads * s->depth; }

/* --- what is there, and what ran ------------------------------------------------------------- */

/* Why a way is not there to be tried on this device; "" where it is. */
static void find_reason(agree_way way, char *reason, size_t size)
{
    char versions[1600] = "", why[300] = "";
    const trek_backend *cuda = trek_backend_find(TREK_CUDA, why, sizeof why);
    trek_device_info info = { .major = 0 };
    if (!cuda || cuda->info(gpu_device.index, &info) != TREK_OK) {
        snprintf(reason, size, "%s", cuda ? trek_error() : why);
        return;
    }
    cuda->versions(versions, sizeof versions);
    const char *missing = strstr(versions, "no cuDNN");
    if (way == AGREE_WGMMA && (info.major != 9 || info.minor != 0))
        snprintf(reason, size, "compute capability %d.%d, wgmma is that of 9.0", info.major, info.minor);
    else if (way == AGREE_WGMMA && test_fake("trek_fake_fail") && !getenv("TREK_TEST_PTX"))
        snprintf(reason, size, "the fake device has no wgmma");
    else if (way == AGREE_CUDNN && missing)
        snprintf(reason, size, "%.*s", (int)strcspn(missing, ";"), missing);
}

static void copy_error(char *text, size_t size)
{
    snprintf(text, size, "%s", trek_error_status() != TREK_OK ? trek_error() : "it ended early");
    trek_error_clear();
}

/* Which ways of attention served the calls since the last time. */
static void take_paths(agree_result *r, agree_paths *paths)
{
    enum { MOST = 64 };
    trek_device_path rows[MOST];
    char *report = trek_device_report(gpu_device);
    int count = trek_device_paths(gpu_device, rows, MOST);
    for (int k = 0; k < count && k < MOST && paths->count < AGREE_PATHS; k++) {
        agree_path *row = &paths->row[paths->count];
        if (strncmp(rows[k].what, "attention", strlen("attention")) != 0)
            continue;
        snprintf(row->what, sizeof row->what, "%s", rows[k].what);
        snprintf(row->path, sizeof row->path, "%s", rows[k].path);
        row->calls = rows[k].calls;
        row->refused = rows[k].refused;
        paths->count++;
    }
    size_t used = strlen(r->report);
    snprintf(r->report + used, sizeof r->report - used, "%s", report ? report : "");
    trek_string_free(&report);
    trek_device_paths_reset(gpu_device);
}

/* --- attention --------------------------------------------------------------------------------- */

/* As GPT-2 calls it: q, k, v are views of the packed product, the result goes on as [batch, length, width]. */
static trek_var *attend(trek_var *packed)
{
    trek_var *part[3];
    for (int k = 0; k < 3; k++)
        part[k] = trek_permute(trek_select(packed, 2, k), trek_dims(0, 2, 1, 3));
    return trek_permute(trek_attention(part[0], part[1], part[2], &(trek_attention_opts){ .causal = true }),
                        trek_dims(0, 2, 1, 3));
}

static bool read_16_bits(const trek_tensor *tensor, trek_dtype dtype, void *to, int64_t elements)
{
    return tensor && trek_tensor_to_host(tensor, dtype, to, (size_t)elements * trek_dtype_size(dtype)) == TREK_OK;
}

/* y and the gradient of packed, as values of `dtype`. */
static bool both_ways(trek_var *packed, trek_var *seed, trek_dtype dtype, void *y, void *gradient)
{
    trek_scope scope = trek_scope_begin();
    int64_t elements = trek_var_numel(seed);
    trek_var *out = attend(packed);
    bool done = out && trek_backward_with(out, seed, NULL) == TREK_OK &&
        read_16_bits(trek_var_data(out), dtype, y, elements) &&
        read_16_bits(trek_var_data(trek_var_grad(packed)), dtype, gradient, 3 * elements);
    trek_var_zero_grad(packed);
    trek_scope_end(scope);
    return done;
}

static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static double ratio(double difference, double size)
{
    double value = sqrt(difference / size);
    return isfinite(value) ? value : INFINITY;
}

/* Distances of one sequence's y, dq, dk, dv from those by kernels for f32, which share no code with those of tensor cores. */
static bool compare_sequence(const agree_sizes *s, int64_t at, trek_var *packed, trek_var *seed, const uint16_t *y,
                             const uint16_t *gradient, double *difference, double *size)
{
    int64_t width = s->heads * s->depth, elements = s->length * width;
    float *wide = malloc(4 * (size_t)elements * sizeof *wide);
    trek_scope scope = trek_scope_begin();
    trek_var *leaf = trek_cast(trek_narrow(trek_var_constant(trek_var_data(packed)), 0, at, 1), TREK_F32);
    trek_var *x = leaf ? trek_var_new(trek_var_data(leaf), true) : NULL;
    trek_var *dy = trek_cast(trek_narrow(trek_var_constant(trek_var_data(seed)), 0, at, 1), TREK_F32);
    bool done = wide && x && dy && both_ways(x, dy, TREK_F32, wide, wide + elements);
    for (int64_t k = 0; done && k < 4 * elements; k++) {
        int part = k < elements ? 0 : 1 + (int)((k - elements) / width % 3);
        double got = from_bf16(k < elements ? y[at * elements + k] : gradient[3 * at * elements + k - elements]);
        difference[part] += (got - wide[k]) * (got - wide[k]);
        size[part] += (double)wide[k] * wide[k];
    }
    trek_var_release(x);
    trek_scope_end(scope);
    free(wide);
    return done;
}

static bool compare_with_f32(const agree_sizes *s, trek_var *packed, trek_var *seed, const uint16_t *y,
                             const uint16_t *gradient, double *reference)
{
    double difference[4] = { 0 }, size[4] = { 0 };
    for (int64_t k = 0; k < AGREE_CHECKED; k++) /* the first and the last */
        if (!compare_sequence(s, k * (s->batch - 1) / (AGREE_CHECKED - 1), packed, seed, y, gradient, difference, size))
            return false;
    for (int part = 0; part < 4; part++)
        reference[part] = ratio(difference[part], size[part]);
    return true;
}

static void run_attention(agree_way way, const agree_sizes *s, agree_result *r, uint16_t *y, uint16_t *gradient)
{
    size_t bytes = 2 * (size_t)agree_elements(s);
    uint16_t *again = malloc(4 * bytes);
    trek_seed(5);
    trek_var *packed = gpu_randn(trek_dims(s->batch, s->length, 3, s->heads, s->depth), TREK_BF16, 1, true);
    trek_var *seed = gpu_randn(trek_dims(s->batch, s->length, s->heads, s->depth), TREK_BF16, 1, false);
    bool done = again && packed && seed && both_ways(packed, seed, TREK_BF16, y, gradient) &&
        both_ways(packed, seed, TREK_BF16, again, again + agree_elements(s));
    r->same[0] = done && memcmp(y, again, bytes) == 0;
    r->same[1] = done && memcmp(gradient, again + agree_elements(s), 3 * bytes) == 0;
    take_paths(r, &r->attention);
    if (done && way == AGREE_OWN)
        done = compare_with_f32(s, packed, seed, y, gradient, r->reference);
    if (!done)
        copy_error(r->attention_error, sizeof r->attention_error);
    r->attention_ran = done;
    trek_var_release(packed);
    trek_var_release(seed);
    free(again);
    trek_device_paths_reset(gpu_device);
    trek_memory_release_cached(gpu_device);
}

/* --- training ------------------------------------------------------------------------------------ */

static uint64_t hash_of(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t k = 0; k < bytes; k += sizeof hash) {
        uint64_t word = 0;
        memcpy(&word, (const char *)data + k, bytes - k < sizeof word ? bytes - k : sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash;
}

static bool hash_parameters(trek_module *module, uint64_t *hash)
{
    trek_params *params = trek_module_params(module);
    bool done = params != NULL;
    *hash = 1;
    for (int k = 0; done && k < trek_params_count(params); k++) {
        trek_tensor *t = trek_var_data(trek_params_var(params, k));
        trek_dtype dtype = trek_tensor_dtype(t);
        size_t bytes = (size_t)trek_tensor_numel(t) * trek_dtype_size(dtype);
        void *data = malloc(bytes);
        done = data && trek_tensor_to_host(t, dtype, data, bytes) == TREK_OK;
        if (done)
            *hash = hash_of(*hash, data, bytes);
        free(data);
    }
    trek_params_free(&params);
    return done;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run_training(agree_mode mode, const agree_sizes *s, agree_training *t)
{
    bool captured = mode == AGREE_CAPTURED || mode == AGREE_CAPTURED_KEPT;
    double start = now();
    trek_seed(1);
    gpu_train train = gpu_gpt2_train(s->layers, s->gpt2_heads, s->batch, s->context, s->context, s->vocabulary);
    train.kept = mode == AGREE_EAGER_KEPT || mode == AGREE_CAPTURED_KEPT;
    train.read = true;
    gpu_train_capture(&train);
    for (int k = 0; k < AGREE_STEPS && trek_error_status() == TREK_OK; k++) {
        if (captured)
            gpu_captured_step(&train);
        else
            gpu_eager_step(&train);
        t->loss[k] = train.last;
    }
    t->replays = trek_graph_replays(train.graph);
    if (trek_error_status() == TREK_OK && captured && t->replays < 1)
        trek_fail(TREK_ERR_STATE, "nothing was replayed: %s", trek_graph_capture_problem(train.graph));
    if (trek_error_status() != TREK_OK || !hash_parameters(trek_graph_module(train.graph), &t->parameters))
        copy_error(t->error, sizeof t->error);
    t->seconds = now() - start;
    gpu_train_close(&train);
    trek_memory_release_cached(gpu_device);
}

void agree_run(agree_way way, const agree_sizes *sizes, trek_device device, agree_result *r, uint16_t *y, uint16_t *gradient)
{
    gpu_device = device;
    for (int part = 0; part < 4; part++)
        r->reference[part] = -1;
    find_reason(way, r->skipped, sizeof r->skipped);
    if (r->skipped[0])
        return;
    if (sizes->attention)
        run_attention(way, sizes, r, y, gradient);
    for (int mode = 0; sizes->gpt2 && mode < AGREE_MODES; mode++) {
        run_training((agree_mode)mode, sizes, &r->training[mode]);
        r->trainings = mode + 1;
    }
    if (sizes->gpt2)
        take_paths(r, &r->gpt2);
}
