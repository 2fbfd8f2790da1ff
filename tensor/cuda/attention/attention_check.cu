/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the kernels for sm_90a with those for all GPUs before they are used, with TREK_CUDA_ATTENTION=auto. Two
 * heads of 384 queries and 640 keys, causal, are arranged as in a GPT-2: query, key and value are adjacent in one
 * tensor, so that all three have strides like those of tensor copies. The numbers are multiples of 1/64 between -2
 * and 2, which both 16-bit formats can represent. */
#include "tensor/cuda/attention/attention_check.cuh"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { HEADS = 2, QUERIES = 384, KEYS = 640, PARTS = 3 };

/* By how much of a tensor's largest magnitude its elements may differ: four units of bf16, or of f16, while correct
 * kernels differ by one. Misplaced elements differ by their whole size. */
static double allowed(trek_dtype dtype)
{
    return dtype == TREK_BF16 ? 0x1p-6 : 0x1p-9;
}

/* --- the problem: offsets in bytes ------------------------------------------------------------ */

struct layout {
    int64_t depth;
    int64_t packed() const { return (int64_t)KEYS * PARTS * HEADS * depth; } /* elements of query, key and value */
    int64_t rows() const { return (int64_t)QUERIES * HEADS * depth; }        /* of y */
    size_t dy() const { return (size_t)packed() * 2; }
    size_t delta() const { return dy() + (size_t)rows() * 2; }
    size_t input_bytes() const { return delta() + HEADS * QUERIES * sizeof(float); }
    size_t lse() const { return (size_t)rows() * 2; } /* results: y, lse, gradients */
    size_t gradients() const { return lse() + HEADS * QUERIES * sizeof(float); }
    size_t result_bytes() const { return gradients() + (size_t)packed() * 2; }
};

static attention_operand rows_of(void *data, int64_t part, int64_t rows, int64_t parts, int64_t depth)
{
    const int64_t row = parts * HEADS * depth;
    return { (char *)data + part * HEADS * depth * 2, { rows * row, depth, row, 1 } };
}

static attention_job job_of(const layout &at, char *inputs, char *results)
{
    attention_job job = {};
    job.batch = 1, job.heads = job.kv_heads = HEADS, job.group = 1;
    job.queries = QUERIES, job.keys = KEYS, job.depth = at.depth;
    job.scale = 1 / sqrt((double)at.depth);
    job.causal = true;
    attention_operand *const from[PARTS] = { &job.q, &job.k, &job.v }, *const to[PARTS] = { &job.dq, &job.dk, &job.dv };
    for (int part = 0; part < PARTS; part++) {
        *from[part] = rows_of(inputs, part, KEYS, PARTS, at.depth);
        *to[part] = rows_of(results + at.gradients(), part, KEYS, PARTS, at.depth);
    }
    job.dy = rows_of(inputs + at.dy(), 0, QUERIES, 1, at.depth);
    job.y = rows_of(results, 0, QUERIES, 1, at.depth);
    job.lse = results + at.lse();
    job.delta = inputs + at.delta();
    return job;
}

/* Returns a number that both formats can represent as a normal number, or 0. */
static uint16_t bits_of(float x, trek_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (dtype == TREK_BF16)
        return (uint16_t)(bits >> 16);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    return (uint16_t)(sign | (magnitude ? (magnitude - (112u << 23)) >> 13 : 0)); /* 112: the difference of the exponents'
                                                                                   * biases */
}

static double number_of(uint16_t bits, trek_dtype dtype)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    if (dtype == TREK_BF16)
        return x;
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

static void fill(uint16_t *numbers, int64_t n, trek_dtype dtype)
{
    uint32_t state = 12345;
    for (int64_t k = 0; k < n; k++) {
        state = state * 1664525u + 1013904223u;
        numbers[k] = bits_of((float)((int)(state >> 24) - 127) / 64, dtype);
    }
}

/* --- a run -------------------------------------------------------------------------------------- */

/* The inputs of a run, and where the host has its results. */
struct bench {
    const trek_op_call *call;
    trek_cuda_queue *queue;
    trek_dtype dtype;
    layout at;
    char *inputs, *results;
};

/* Results begin as bytes of 0xff, which are NaN, so that elements that a kernel does not write are noticed. */
static trek_status run(const bench &b, bool wgmma, char *host)
{
    const attention_job job = job_of(b.at, b.inputs, b.results);
    trek_status status = trek_cuda_check(cudaMemsetAsync(b.results, 0xff, b.at.result_bytes(), b.queue->stream), "cudaMemset");
    if (status == TREK_OK)
        status = wgmma ? trek_cuda_attention_wgmma(b.call, b.queue, job, b.dtype)
                       : trek_cuda_attention_mma(b.call, b.queue, job, b.dtype);
    if (status == TREK_OK)
        status = trek_cuda_attention_delta(b.call, b.queue, job, b.dtype);
    if (status == TREK_OK)
        status = wgmma ? trek_cuda_attention_wgmma_backward(b.call, b.queue, job, b.dtype)
                       : trek_cuda_attention_mma_backward(b.call, b.queue, job, b.dtype);
    const trek_device device = { TREK_CUDA, b.queue->device->index }, cpu = { TREK_CPU, 0 };
    return status == TREK_OK ? trek_cuda_copy_bytes(host, cpu, b.results, device, b.at.result_bytes(), nullptr) : status;
}

/* --- comparing ------------------------------------------------------------------------------------ */

struct difference {
    const char *what;
    double off, largest; /* the largest difference; the largest magnitude of the other result */
};

/* Adds one pair; NaN differs by infinity. */
static void add(difference *d, double x, double y)
{
    const double off = fabs(x - y);
    d->off = off <= d->off ? d->off : off == off ? off : (double)INFINITY;
    d->largest = fabs(y) > d->largest ? fabs(y) : d->largest;
}

/* Returns the difference relative to the largest magnitude; infinite if something is NaN. */
static double relative(const difference &d)
{
    return d.off == 0 ? 0 : d.off < (double)INFINITY ? d.off / d.largest : (double)INFINITY;
}

/* Returns the largest difference of y, lse, dq, dk and dv. Rows of dq after the queries do not matter. */
static difference largest_difference(const bench &b, const char *x, const char *y)
{
    static const char *const names[PARTS] = { "dq", "dk", "dv" };
    difference of_y = { "y", 0, 0 }, of_lse = { "lse", 0, 0 }, of_parts[PARTS];
    const uint16_t *x_rows = (const uint16_t *)x, *y_rows = (const uint16_t *)y;
    const float *x_lse = (const float *)(x + b.at.lse()), *y_lse = (const float *)(y + b.at.lse());
    for (int64_t k = 0; k < b.at.rows(); k++)
        add(&of_y, number_of(x_rows[k], b.dtype), number_of(y_rows[k], b.dtype));
    for (int k = 0; k < HEADS * QUERIES; k++)
        add(&of_lse, x_lse[k], y_lse[k]);
    x_rows = (const uint16_t *)(x + b.at.gradients()), y_rows = (const uint16_t *)(y + b.at.gradients());
    const int64_t part_size = HEADS * b.at.depth;
    for (int part = 0; part < PARTS; part++) {
        of_parts[part] = { names[part], 0, 0 };
        for (int64_t row = 0; row < KEYS; row++)
            for (int64_t k = (row * PARTS + part) * part_size, end = k + part_size; k < end; k++) {
                const bool untouched = part == 0 && row >= QUERIES && x_rows[k] == 0xffff && y_rows[k] == 0xffff;
                if (!untouched)
                    add(&of_parts[part], number_of(x_rows[k], b.dtype), number_of(y_rows[k], b.dtype));
            }
    }
    const difference all[] = { of_lse, of_parts[0], of_parts[1], of_parts[2] };
    difference most = of_y;
    for (const difference &d : all)
        if (relative(d) > relative(most))
            most = d;
    return most;
}

/* --- verdicts --------------------------------------------------------------------------------------- */

static const char agree[] = "agree", differ[] = "its results differed from mma's when they were compared at the first call",
                  restless[] = "two runs of it had different bits when it was compared with mma at the first call",
                  failed[] = "it could not be compared with mma at the first call",
                  captured[] = "it was first asked for while a step was captured, when nothing can be compared";

static const char *compare(const bench &b, char *first, char *second, char *other)
{
    trek_status status = run(b, true, first);
    if (status == TREK_ERR_UNSUPPORTED)
        return trek_cuda_last_refusal();
    status = status == TREK_OK ? run(b, true, second) : status;
    status = status == TREK_OK ? run(b, false, other) : status;
    if (status != TREK_OK)
        return failed;
    const difference d = largest_difference(b, first, other);
    const int index = b.queue->device->index;
    const char *dtype = trek_dtype_name(b.dtype);
    const long long depth = (long long)b.at.depth;
    if (!(relative(d) <= allowed(b.dtype))) {
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "attention on cuda:%d, %s, depth up to %lld: %s of the kernels for sm_90a differs by "
                         "%.3g from that of the others, whose largest magnitude is %.3g (%.2g of it is allowed); the others are "
                         "used",
                         index, dtype, depth, d.what, d.off, d.largest, allowed(b.dtype));
        return differ;
    }
    if (memcmp(first, second, b.at.result_bytes()) == 0) {
        trek_log_message(TREK_LOG_LEVEL_INFO,
                         "attention on cuda:%d, %s, depth up to %lld: the kernels for sm_90a agree with the others: "
                         "%s, which differs most, to %.3g of its largest magnitude",
                         index, dtype, depth, d.what, relative(d));
        return agree;
    }
    trek_log_message(TREK_LOG_LEVEL_WARNING,
                     "attention on cuda:%d, %s, depth up to %lld: two runs of the kernels for sm_90a have "
                     "different bits; the others are used",
                     index, dtype, depth);
    return restless;
}

static const char *verdict_of(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, int64_t depth)
{
    const trek_status before = trek_plugin_host->status_get();
    bench b = { call, queue, dtype, { depth }, nullptr, nullptr };
    trek_cuda_scratch memory = { nullptr, nullptr };
    const size_t inputs = (b.at.input_bytes() + 255) / 256 * 256, results = b.at.result_bytes();
    const trek_device device = { TREK_CUDA, queue->device->index }, cpu = { TREK_CPU, 0 };
    char *host = (char *)trek_alloc(inputs + 3 * results), *found = host + inputs;
    const char *verdict = failed;
    if (host && trek_cuda_scratch_take(queue, inputs + results, &memory) == TREK_OK) {
        b.inputs = (char *)memory.data, b.results = b.inputs + inputs;
        fill((uint16_t *)host, b.at.packed() + b.at.rows(), dtype);
        if (trek_cuda_copy_bytes(b.inputs, device, host, cpu, b.at.delta(), nullptr) == TREK_OK)
            verdict = compare(b, found, found + results, found + 2 * results);
    }
    trek_cuda_scratch_give(queue, &memory);
    trek_free(host);
    if (verdict == failed)
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "attention on cuda:%d: the kernels for sm_90a could not be compared with the others, "
                         "which are used",
                         queue->device->index);
    if (before == TREK_OK)
        trek_plugin_host->error_clear();
    return verdict;
}

/* By device, dtype and class of depths; NULL: not compared yet. */
static const char *verdicts[TREK_CUDA_MAX_DEVICES][2][2];
static pthread_mutex_t verdicts_lock = PTHREAD_MUTEX_INITIALIZER;

bool trek_cuda_attention_agrees(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, int64_t depth)
{
    const char **at = &verdicts[queue->device->index][dtype == TREK_BF16][depth > 64],
               *verdict = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    if (!verdict) {
        pthread_mutex_lock(&verdicts_lock);
        verdict = *at;
        if (!verdict)
            verdict = queue->capture ? captured : verdict_of(call, queue, dtype, depth > 64 ? 128 : 64);
        __atomic_store_n(at, verdict, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&verdicts_lock);
    }
    return verdict == agree || trek_cuda_refuse_it(verdict);
}
