/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in 16-bit formats, whose kernels differ from the others', against the same
 * rounded numbers in f64: several blocks of queries and keys with rests, heads in groups,
 * masks, dropout, queries, keys and values that are parts of one tensor. An error is
 * measured against the size of the tensor it is in, which a mistaken order does not pass. */
#include <pthread.h>

#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/backend.h"
#include "tensor/rank_context.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

typedef struct attention_case {
    int64_t batch, heads, kv_heads, queries, keys, depth;
    bool causal, packed; /* packed: one tensor [B, T, H + 2 KV, D] */
    int mask;             /* a dtype, or NO_MASK */
    double low, p, scale; /* the mask's number for what is not to be seen; of dropout; 0: the usual one */
} attention_case;

enum { NO_MASK = -1 };

static const attention_case cases[] = {
    { 2, 2, 2, 192, 192, 64, true, true, NO_MASK, 0, 0, 0 },
    { 1, 4, 2, 150, 210, 64, false, false, TREK_BOOL, 0, 0, 0 },
    { 1, 4, 2, 140, 140, 128, true, true, NO_MASK, 0, 0, 0 },
    { 2, 2, 1, 129, 129, 128, false, true, TREK_F32, -INFINITY, 0, 0 },
    { 1, 1, 1, 70, 300, 40, true, false, NO_MASK, 0, 0, 1 },
    { 1, 2, 1, 200, 65, 88, true, false, NO_MASK, 0, 0, 0 },
    { 1, 2, 1, 129, 97, 64, false, false, NO_MASK, 0, 0.25, 0 },
    { 1, 3, 1, 66, 140, 128, true, false, TREK_F32, -1e9, 0.4, 0 },
    { 1, 1, 1, 64, 64, 8, false, true, NO_MASK, 0, 0, 2 },
    { 1, 2, 2, 1, 333, 64, false, false, NO_MASK, 0, 0, 0 },
    { 1, 2, 2, 40, 50, 48, false, false, TREK_F64, -3, 0, 0 },
    { 1, 2, 2, 33, 47, 20, true, false, NO_MASK, 0, 0, 0 },
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* A sum of three of a stream's numbers: about as wide as a normal one. Rounded to `rounded`, held as `dtype`. */
static trek_var *numbers(uint32_t stream, trek_shape shape, trek_dtype rounded, trek_dtype dtype)
{
    int64_t n = trek_shape_numel(shape);
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t k = 0; k < n; k++)
        values[k] = test_number(stream, (uint32_t)(3 * k)) + test_number(stream, (uint32_t)(3 * k + 1)) +
                    test_number(stream, (uint32_t)(3 * k + 2));
    trek_tensor *t = test_values(values, shape, rounded);
    free(values);
    assert_non_null(t);
    trek_var *v = trek_var_from(dtype == rounded ? t : trek_tensor_cast(t, dtype));
    if (dtype != rounded)
        trek_tensor_release(t);
    assert_non_null(v);
    return v;
}

static trek_var *wants_gradient(trek_var *v)
{
    assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

/* [T, S]: every query sees its own key (as far as there is one) and most others; `all_low`: one sees none. */
static trek_var *mask_of(const attention_case *c, bool all_low)
{
    int64_t n = c->queries * c->keys;
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = k / c->keys, j = k % c->keys;
        bool seen = i % c->keys == j || (k * 2654435761u >> 7) % 4 != 0;
        if (all_low && i == 1)
            seen = false;
        values[k] = c->mask == (int)TREK_BOOL ? seen : seen ? test_number(77, (uint32_t)k) : c->low;
    }
    trek_var *mask = trek_var_from(test_values(values, trek_dims(c->queries, c->keys), (trek_dtype)c->mask));
    free(values);
    assert_non_null(mask);
    return mask;
}

/* y, then the gradients of what goes in: of the packed tensor, or of query, key, value. Returns how many. */
static int attend(const attention_case *c, trek_dtype rounded, trek_dtype dtype, trek_var *mask, trek_var *out[4])
{
    trek_var *in[3], *q, *k, *v;
    int n = c->packed ? 1 : 3;
    if (c->packed) {
        in[0] = wants_gradient(numbers(1, trek_dims(c->batch, c->queries, c->heads + 2 * c->kv_heads, c->depth), rounded, dtype));
        trek_var *whole = trek_permute(in[0], trek_dims(0, 2, 1, 3));
        q = trek_narrow(whole, 1, 0, c->heads);
        k = trek_narrow(whole, 1, c->heads, c->kv_heads);
        v = trek_narrow(whole, 1, c->heads + c->kv_heads, c->kv_heads);
    } else {
        q = in[0] = wants_gradient(numbers(1, trek_dims(c->batch, c->heads, c->queries, c->depth), rounded, dtype));
        k = in[1] = wants_gradient(numbers(2, trek_dims(c->batch, c->kv_heads, c->keys, c->depth), rounded, dtype));
        v = in[2] = wants_gradient(numbers(3, trek_dims(c->batch, c->kv_heads, c->keys, c->depth), rounded, dtype));
    }
    trek_rank_here.rng_step = 5;
    trek_rank_here.rng_draw = 0;
    out[0] = trek_attention(q, k, v, &(trek_attention_opts){ .causal = c->causal, .mask = mask, .dropout = c->p,
                                                             .scale = c->scale });
    if (!out[0])
        fail_msg("%s", trek_error());
    trek_var *with = numbers(9, trek_dims(c->batch, c->heads, c->queries, c->depth), rounded, dtype);
    assert_int_equal(trek_backward(trek_sum(trek_mul(out[0], with), trek_dims_all(), false)), TREK_OK);
    for (int i = 0; i < n; i++)
        assert_non_null(out[1 + i] = trek_var_grad(in[i]));
    return 1 + n;
}

/* Each element to 16 units of the size of its row (of the depth) or, where that is smaller, of the whole's. */
static void near(const trek_var *got, const trek_var *want, double unit, const char *what)
{
    assert_true(trek_shape_equal(trek_var_shape(got), trek_var_shape(want)));
    double *x = test_read(trek_var_data(got)), *y = test_read(trek_var_data(want)), whole = 0, off = 0;
    assert_non_null(x);
    assert_non_null(y);
    int64_t n = trek_var_numel(want), depth = trek_var_size(want, -1), worst = -1;
    for (int64_t k = 0; k < n; k++) {
        whole += y[k] * y[k] / (double)n;
        off += (x[k] - y[k]) * (x[k] - y[k]) / (double)n;
    }
    for (int64_t r = 0; r < n / depth && worst < 0; r++) {
        double size = 0;
        for (int64_t d = 0; d < depth; d++)
            size += y[r * depth + d] * y[r * depth + d] / (double)depth;
        size = sqrt(size > whole ? size : whole);
        for (int64_t d = 0; d < depth && worst < 0; d++)
            if (!(fabs(x[r * depth + d] - y[r * depth + d]) <= 16 * unit * size))
                worst = r * depth + d;
    }
    bool wide = !(sqrt(off) <= 3 * unit * sqrt(whole));
    double at[2] = { worst < 0 ? 0 : x[worst], worst < 0 ? 0 : y[worst] };
    free(x);
    free(y);
    if (worst >= 0 || wide)
        fail_msg("%s: element %lld is %g, should be %g; off by %g of %g in the mean", what, (long long)worst, at[0], at[1],
                 sqrt(off),
                 sqrt(whole));
}

/* --- which way calls went ------------------------------------------------------------------------------ */

/* What TREK_CUDA_ATTENTION names, if the device has it; NULL: nothing in particular is expected. */
static const char *asked_way(void)
{
    const char *asked = getenv("TREK_CUDA_ATTENTION");
    trek_device_info info;
    if (test_on_cpu() || !asked || (strcmp(asked, "wgmma") != 0 && strcmp(asked, "cudnn") != 0))
        return NULL;
    const trek_backend *backend = trek_backend_get(TREK_CUDA);
    assert_non_null(backend);
    assert_int_equal(backend->info(test_device().index, &info), TREK_OK);
    return strcmp(asked, "cudnn") == 0 || (info.major == 9 && info.minor == 0) ? asked : NULL;
}

/* Forward and backward went by the way that is asked for, `calls` times each since the counts were reset. What NVIDIA's own cuDNN
 * does not take is said and no failure. */
static void expect_way(int calls, const char *what)
{
    const char *way = asked_way();
    trek_device_path rows[64];
    int n = way ? trek_device_paths(test_device(), rows, 64) : 0, seen = 0;
    for (int k = 0; k < n && k < 64; k++) {
        if (strcmp(rows[k].path, way) != 0 || strncmp(rows[k].what, "attention", 9) != 0)
            continue;
        seen++;
        if (rows[k].calls == calls)
            continue;
        if (strcmp(way, "wgmma") == 0 || test_fake("trek_fake_calls"))
            fail_msg("%s: %s served %lld of %d calls of %s: %s", what, way, (long long)rows[k].calls, calls, rows[k].what,
                     rows[k].reason ? rows[k].reason : "it was not asked");
        print_message("%s: %s refused %s: %s\n", what, way, rows[k].what, rows[k].reason ? rows[k].reason : "?");
    }
    assert_int_equal(seen, way ? 2 : 0);
}

static bool is_eligible(const attention_case *c)
{
    return c->mask == NO_MASK && c->p == 0 && c->depth % 8 == 0 && c->depth <= 128;
}

static void against_f64(trek_dtype dtype, double unit)
{
    trek_rank_context kept = trek_rank_here;
    trek_seed(21);
    for (int k = 0; k < CASES; k++) {
        trek_var *got[4], *want[4];
        trek_var *mask = cases[k].mask == NO_MASK ? NULL : mask_of(&cases[k], false);
        char name[40];
        snprintf(name, sizeof name, "case %d", k);
        trek_device_paths_reset(test_device());
        int n = attend(&cases[k], dtype, dtype, mask, got);
        expect_way(is_eligible(&cases[k]), name);
        attend(&cases[k], dtype, TREK_F64, mask, want);
        for (int i = 0; i < n; i++) {
            char what[80];
            snprintf(what, sizeof what, "case %d, %s %d", k, i ? "gradient of input" : "output", i ? i - 1 : 0);
            near(got[i], want[i], unit, what);
        }
    }
    trek_rank_here = kept;
}

static void bf16_is_f64_rounded(void **state)
{
    against_f64(TREK_BF16, 0x1p-8);
}

static void f16_is_f64_rounded(void **state)
{
    against_f64(TREK_F16, 0x1p-11);
}

static void attend_and_wait(int64_t depth, trek_dtype dtype)
{
    trek_var *out[4];
    attend(&(attention_case){ 1, 1, 1, 70, 70, depth, false, false, NO_MASK, 0, 0, 0 }, dtype, dtype, NULL, out);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
}

/* Heads of depth 128 take as many kernels as those of depth 64, however little shared memory there is (99 KiB on some GPUs):
 * none is found not to fit after others have run, and none of the slow way is among them. */
static void bf16_deep_heads_fit(void **state)
{
    long (*kernels)(int device);
    void *address = test_fake("trek_fake_kernels");
    if (!address)
        skip();
    memcpy(&kernels, &address, sizeof kernels);
    long count[3] = { 0 };
    attend_and_wait(64, TREK_BF16); /* what a device runs once, when it is opened or chooses its kernels, is behind */
    attend_and_wait(128, TREK_BF16);
    for (int k = 0; k < 3; k++) {
        long before = kernels(test_device().index);
        attend_and_wait((int64_t[]){ 64, 72, 128 }[k], TREK_BF16);
        count[k] = kernels(test_device().index) - before;
    }
    assert_int_equal(count[1], count[0]);
    assert_int_equal(count[2], count[0]);
}

static void *attend_in_thread(void *arg)
{
    trek_scope scope = trek_scope_begin();
    for (int64_t depth = 128; depth >= 80; depth -= 16) {
        trek_var *q = numbers(1, trek_dims(1, 1, 40, depth), TREK_F32, TREK_F32);
        trek_attention(q, q, q, NULL);
    }
    trek_device_sync(test_device());
    trek_scope_end(scope);
    return NULL;
}

/* What a kernel may have of shared memory is raised once, to the most: launches of other sizes in other threads leave it. */
static void bf16_and_others_opt_in_once(void **state)
{
    void (*fails)(const char *specification);
    long (*calls)(const char *function);
    void *addresses[2] = { test_fake("trek_fake_fail"), test_fake("trek_fake_calls") };
    if (!addresses[0] || !addresses[1])
        skip();
    memcpy(&fails, &addresses[0], sizeof fails);
    memcpy(&calls, &addresses[1], sizeof calls);
    fails("cudaFuncSetAttribute:1000000");
    pthread_t threads[4];
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 4; k++)
            assert_int_equal(pthread_create(&threads[k], NULL, attend_in_thread, NULL), 0);
        for (int k = 0; k < 4; k++)
            pthread_join(threads[k], NULL);
        assert_int_equal(calls("cudaFuncSetAttribute"), 1);
    }
    fails(NULL);
}

static void nearly_nothing(const trek_var *v, double most)
{
    double *x = test_read(trek_var_data(v));
    assert_non_null(x);
    for (int64_t k = 0; k < trek_var_numel(v); k++)
        if (!(fabs(x[k]) <= most))
            fail_msg("element %lld is %g, should be 0", (long long)k, x[k]);
    free(x);
}

static trek_var *numbers_on(trek_device device, uint32_t stream, trek_shape shape, trek_dtype rounded, trek_dtype dtype)
{
    trek_tensor *there = trek_tensor_to(trek_var_data(numbers(stream, shape, rounded, dtype)), device);
    assert_non_null(there);
    trek_var *v = trek_var_from(there);
    assert_non_null(v);
    return v;
}

/* The gradients of what goes in, whole, of the output times numbers. */
static void gradients_of(trek_var *y, trek_device device, uint32_t stream, trek_dtype rounded, trek_var *const in[2],
                         trek_var *out[2])
{
    trek_var *with = numbers_on(device, stream, trek_var_shape(y), rounded, trek_var_dtype(y));
    assert_int_equal(trek_backward(trek_sum(trek_mul(y, with), trek_dims_all(), false)), TREK_OK);
    for (int i = 0; i < 2; i++)
        assert_non_null(out[i] = trek_var_grad(in[i]));
}

/* Random sizes, forward and backward: tiles that end anywhere, more keys than queries and fewer, one of either, parts of one
 * tensor, batches that are parts of others, and rows that begin where wide copies cannot. The first few's gradients are
 * the same to the bit the second time. */
static void tiles_end_anywhere(trek_dtype dtype, double unit)
{
    const int rounds = 14;
    uint32_t at = dtype == TREK_BF16 ? 100 : 200;
    for (int k = 0; k < rounds; k++, at++) {
        trek_scope scope = trek_scope_begin();
        int64_t draw[8];
        for (int d = 0; d < 8; d++)
            draw[d] = (int64_t)((test_number(at, (uint32_t)d) + 1) * 1000); /* 0 to 1999 */
        const int64_t heads = 1 + draw[0] % 2, group = 1 + draw[1] % 2, depth = 8 * (1 + (k % 2 ? draw[2] % 8 : 8 + draw[2] % 8));
        const int64_t queries = k == 0 ? 1 : k < 4 ? 126 + k * 2 : 1 + draw[3] % 200, keys = k == 1 ? 1 : 1 + draw[4] % 560;
        const bool causal = k / 2 % 2, askew = k == rounds - 1; /* of both depths */
        const trek_attention_opts opts = { .causal = causal };
        char what[80];
        snprintf(what, sizeof what, "round %d: %lld queries, %lld keys, depth %lld%s", k, (long long)queries, (long long)keys,
                 (long long)depth, causal ? ", causal" : "");
        trek_var *y[3], *gradients[3][2];
        trek_device_paths_reset(test_device());
        for (int run = 0; run < (k < 4 ? 3 : 2); run++) {
            const trek_dtype in = run == 1 ? TREK_F64 : dtype;
            const trek_device device = run == 1 ? trek_cpu(0) : test_device();
            trek_var *leaf[2] = {
                wants_gradient(numbers_on(device, at, trek_dims(3, queries, heads * group, depth), dtype, in)),
                wants_gradient(numbers_on(device, at + 50, trek_dims(3, 2 * heads, keys, depth + (askew ? 4 : 0)), dtype, in)),
            };
            trek_var *q = trek_narrow(trek_permute(leaf[0], trek_dims(0, 2, 1, 3)), 0, k % 2, 2);
            trek_var *kv = trek_narrow(trek_narrow(leaf[1], 0, 1, 2), 3, askew ? 4 : 0, depth);
            y[run] = trek_attention(q, trek_narrow(kv, 1, 0, heads), trek_narrow(kv, 1, heads, heads), &opts);
            if (!y[run])
                fail_msg("%s: %s", what, trek_error());
            gradients_of(y[run], device, at + 100, dtype, leaf, gradients[run]);
        }
        expect_way(askew ? 0 : k < 4 ? 2 : 1, what);
        near(y[0], y[1], unit, what);
        for (int i = 0; i < 2; i++) {
            if (i == 0 && (keys == 1 || (causal && queries == 1))) /* whatever the query, its one weight is 1: sums cancel */
                nearly_nothing(gradients[0][i], unit);
            else
                near(gradients[0][i], gradients[1][i], unit, what);
            if (k < 4)
                assert_true(test_same_bits(trek_var_data(gradients[0][i]), trek_var_data(gradients[2][i])));
        }
        trek_scope_end(scope);
    }
}

static void bf16_tiles_end_anywhere(void **state)
{
    tiles_end_anywhere(TREK_BF16, 0x1p-8);
}

static void f16_tiles_end_anywhere(void **state)
{
    tiles_end_anywhere(TREK_F16, 0x1p-11);
}

/* Heads of 140 keys, with scores of about 8192 times the scale; the number of a key of the first, or no key, is NaN. */
static trek_var *sharp(double scale, int64_t queries, int64_t nan_key, trek_dtype dtype)
{
    const trek_shape shape = trek_dims(1, 1, 140, 64);
    trek_var *q = trek_mul_scalar(numbers(1, trek_dims(1, 2, queries, 64), TREK_BF16, dtype), 32);
    trek_var *k = trek_mul_scalar(numbers(2, shape, TREK_BF16, dtype), 32), *v = numbers(3, shape, TREK_BF16, dtype);
    if (nan_key >= 0) {
        trek_var *nan = trek_mul_scalar(trek_narrow(k, 2, nan_key, 1), NAN);
        k = trek_cat((trek_var *[]){ trek_narrow(k, 2, 0, nan_key), nan, trek_narrow(k, 2, nan_key + 1, 139 - nan_key) }, 3, 2);
    }
    trek_var *y = trek_attention(q, k, v, &(trek_attention_opts){ .causal = nan_key >= 0, .scale = scale });
    if (!y)
        fail_msg("%s", trek_error());
    return y;
}

/* Scores far apart, of which exponentials are finite only if they are less by the largest; raw scores that are large where scaled
 * ones are not; and a score that is NaN, which makes the rows that see it NaN and leaves the bits of the others. */
static void bf16_sharp_scores(void **state)
{
    static const double scales[] = { 0, 0x1p-12, 2 };
    for (int k = 0; k < 3; k++)
        near(sharp(scales[k], 70, -1, TREK_BF16), sharp(scales[k], 70, -1, TREK_F64), 0x1p-8, "output of large scores");
    trek_var *y = sharp(0x1p-12, 140, 100, TREK_BF16), *whole = sharp(0x1p-12, 140, 139, TREK_BF16);
    for (int h = 0; h < 2; h++) {
        trek_var *heads[2] = { trek_narrow(y, 1, h, 1), trek_narrow(whole, 1, h, 1) };
        assert_true(test_same_bits(trek_var_data(trek_contiguous(trek_narrow(heads[0], 2, 0, 100))),
                                   trek_var_data(trek_contiguous(trek_narrow(heads[1], 2, 0, 100)))));
        double *x = test_read(trek_var_data(heads[0]));
        assert_non_null(x);
        for (int64_t k = 100 * 64; k < 140 * 64; k++)
            assert_true(isnan(x[k]));
        free(x);
    }
}

/* A row whose keys are all at -1e20 or -1e30 (beside which scores are nothing) has the mean of the values, not NaN; gradients
 * stay finite. */
static void large_masks_of_whole_rows(void **state)
{
    static const double low[] = { -1e20, -1e30 };
    for (int k = 0; k < 2; k++) {
        attention_case c = { 1, 2, 1, 70, 80, 64, false, false, TREK_F32, low[k], 0, 0 };
        trek_var *got[4], *want[4], *mask = mask_of(&c, true);
        attend(&c, TREK_BF16, TREK_BF16, mask, got);
        attend(&c, TREK_BF16, TREK_F64, mask, want);
        near(got[0], want[0], 0x1p-8, "output");
        for (int i = 1; i < 4; i++) {
            double *x = test_read(trek_var_data(got[i]));
            assert_non_null(x);
            double largest = 0;
            for (int64_t e = 0; e < trek_var_numel(got[i]); e++)
                if (!(fabs(x[e]) <= largest))
                    largest = fabs(x[e]);
            free(x);
            if (!(largest < 1e4))
                fail_msg("gradient of input %d: as large as %g", i - 1, largest);
        }
    }
}

/* --- by cuDNN ------------------------------------------------------------------------------------------- */

static void (*fake_fails)(const char *specification);
static long (*fake_calls)(const char *function);

/* Whether attention is asked of the tests' cuDNN, whose runs can be counted then. */
static bool asks_cudnn(void)
{
    const char *asked = getenv("TREK_CUDA_ATTENTION");
    void *addresses[2] = { test_fake("trek_fake_fail"), test_fake("trek_fake_calls") };
    if (!asked || strcmp(asked, "cudnn") != 0 || !addresses[0] || !addresses[1])
        return false;
    memcpy(&fake_fails, &addresses[0], sizeof fake_fails);
    memcpy(&fake_calls, &addresses[1], sizeof fake_calls);
    fake_fails("cudnnBackendExecute:1000000000"); /* counts from here on */
    return true;
}

typedef struct cudnn_case {
    attention_case c;
    bool taken;
} cudnn_case;

static const cudnn_case cudnn_cases[] = {
    { { 2, 2, 2, 48, 48, 64, true, true, NO_MASK, 0, 0, 0 }, true },
    { { 1, 4, 2, 30, 41, 64, false, false, NO_MASK, 0, 0, 0 }, true },
    { { 2, 4, 1, 33, 33, 128, true, true, NO_MASK, 0, 0, 0.5 }, true },
    { { 1, 1, 1, 7, 30, 40, true, false, NO_MASK, 0, 0, 1 }, true },
    { { 1, 6, 2, 20, 6, 8, true, false, NO_MASK, 0, 0, 0 }, true },
    { { 1, 2, 2, 1, 33, 16, false, false, NO_MASK, 0, 0, 0 }, true },
    { { 3, 1, 1, 9, 1, 8, true, false, NO_MASK, 0, 0, 0 }, true },
    { { 1, 2, 2, 9, 11, 20, false, false, NO_MASK, 0, 0, 0 }, false }, /* rows do not begin at 16 bytes */
    { { 1, 1, 1, 9, 11, 136, false, false, NO_MASK, 0, 0, 0 }, false }, /* too deep for any engine */
    { { 1, 2, 1, 9, 11, 64, false, false, NO_MASK, 0, 0.25, 0 }, false },
    { { 1, 2, 1, 9, 11, 64, false, false, TREK_BOOL, 0, 0, 0 }, false },
};

/* Both ways of what it takes go there, the rest goes the own way; all are as exact. */
static void cudnn_takes_what_it_can(void **state)
{
    static const struct { trek_dtype dtype; double unit; } formats[] = { { TREK_BF16, 0x1p-8 }, { TREK_F16, 0x1p-11 } };
    if (!asks_cudnn())
        skip();
    trek_rank_context kept = trek_rank_here;
    for (size_t k = 0; k < 2 * sizeof cudnn_cases / sizeof cudnn_cases[0]; k++) {
        const attention_case *c = &cudnn_cases[k / 2].c;
        trek_dtype dtype = formats[k % 2].dtype;
        trek_var *got[4], *want[4], *mask = c->mask == NO_MASK ? NULL : mask_of(c, false);
        trek_seed(21);
        long before = fake_calls("cudnnBackendExecute");
        trek_device_paths_reset(test_device());
        int n = attend(c, dtype, dtype, mask, got);
        expect_way(cudnn_cases[k / 2].taken, "cuDNN");
        if (fake_calls("cudnnBackendExecute") - before != (cudnn_cases[k / 2].taken ? 2 : 0))
            fail_msg("case %d ran %ld graphs", (int)k / 2, fake_calls("cudnnBackendExecute") - before);
        attend(c, dtype, TREK_F64, mask, want);
        for (int i = 0; i < n; i++) {
            char what[80];
            snprintf(what, sizeof what, "case %d, %s %d", (int)k / 2, i ? "gradient of input" : "output", i ? i - 1 : 0);
            near(got[i], want[i], formats[k % 2].unit, what);
        }
    }
    fake_fails(NULL);
    trek_rank_here = kept;
}

/* A shape is planned once; more of them than a queue keeps, and the first has to be planned again. */
static void cudnn_plans_are_kept(void **state)
{
    attention_case c = { 1, 1, 1, 3, 4, 8, false, false, NO_MASK, 0, 0, 0 };
    trek_var *out[4];
    if (!asks_cudnn())
        skip();
    fake_fails("cudnnBackendFinalize:1000000000");
    long made[3];
    for (int round = 0; round < 3; round++) {
        for (int more = 0; round == 2 && more < 130; more++) { /* each is two plans */
            attention_case other = c;
            other.keys = 10 + more;
            attend(&other, TREK_BF16, TREK_BF16, NULL, out);
        }
        made[round] = fake_calls("cudnnBackendFinalize");
        attend(&c, TREK_BF16, TREK_BF16, NULL, out);
        made[round] = fake_calls("cudnnBackendFinalize") - made[round];
    }
    fake_fails(NULL);
    assert_true(made[0] > 20); /* tensors, operations, graphs; then what says where a run's tensors are, alone */
    assert_int_equal(made[1], 2);
    assert_int_equal(made[2], made[0]);
}

/* A run that fails is an error of the op, after which the next one is right; a graph that cannot be built, or a handle that
 * cannot be made, is no error: the own kernels take the call. */
static void cudnn_failures(void **state)
{
    const trek_shape shape = trek_dims(1, 2, 16, 16);
    if (!asks_cudnn())
        skip();
    trek_var *q = numbers(1, shape, TREK_BF16, TREK_BF16), *want = trek_attention(q, q, q, NULL);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
    fake_fails("cudnnBackendExecute:1");
    REFUSED(trek_attention(q, q, q, NULL), TREK_ERR_CUDA, "attention");
    near(trek_attention(q, q, q, NULL), want, 0x1p-30, "after a failure");
    trek_var *other = numbers(2, trek_dims(1, 2, 24, 16), TREK_BF16, TREK_BF16);
    for (int n = 1; n < 60; n += 7) { /* of whatever is finalised on the way to a plan */
        char what[40];
        snprintf(what, sizeof what, "cudnnBackendFinalize:%d", n);
        fake_fails(what);
        trek_var *part = trek_narrow(other, 2, 0, 17 + n % 7), *wide = trek_cast(part, TREK_F64);
        near(trek_attention(part, part, part, NULL), trek_attention(wide, wide, wide, NULL), 0x1p-8, what);
    }
    fake_fails(NULL);
}

/* --- learned masks ------------------------------------------------------------------------------------- */

typedef struct learned {
    trek_attention_opts opts;
    uint64_t seed;
} learned;

static trek_var *attend_learned(trek_var *const *inputs, int n, void *arg)
{
    learned *l = arg;
    trek_attention_opts opts = l->opts;
    opts.mask = inputs[3];
    trek_seed(5); /* the same weights are dropped */
    return trek_attention(inputs[0], inputs[1], inputs[2], &opts);
}

/* A bias of the scores of every shape that broadcasts, with order in time, groups of heads and dropout: gradients of all inputs
 * and second ones, and the fused op's values. */
static void learned_masks(void **state)
{
    const trek_shape shapes[] = { trek_dims(2, 4, 3, 5), trek_dims(1, 4, 3, 5), trek_dims(3, 5), trek_dims(4, 1, 5),
                                  trek_dims(1) };
    for (int k = 0; k < 5; k++) {
        learned l = { .opts = { .causal = k % 2 == 1, .scale = k == 2 ? 0.3 : 0, .dropout = k == 3 ? 0.4 : 0 } };
        trek_shape of[4] = { trek_dims(2, 4, 3, 6), trek_dims(2, k == 1 ? 2 : 4, 5, 6), trek_dims(2, k == 1 ? 2 : 4, 5, 6),
                             shapes[k] };
        trek_var *inputs[4];
        for (int i = 0; i < 4; i++) {
            trek_tensor *narrow = test_tensor((uint32_t)(40 + i), of[i], 1), *wide = trek_tensor_cast(narrow, TREK_F64);
            inputs[i] = trek_var_new(wide, true);
            trek_tensor_release(narrow);
            trek_tensor_release(wide);
        }
        if (trek_gradcheck(attend_learned, inputs, 4, &l, &(trek_gradcheck_opts){ .second = true }) != TREK_OK)
            fail_msg("case %d: %s", k, trek_error());
        trek_var *y = attend_learned(inputs, 4, &l);
        trek_no_grad_begin();
        near(attend_learned(inputs, 4, &l), y, 1e-12, "the fused op's output");
        trek_no_grad_end();
        for (int i = 0; i < 4; i++)
            trek_var_release(inputs[i]);
    }
    trek_var *q = trek_var_from(test_tensor(1, trek_dims(1, 2, 3, 4), 1)),
        *mask = wants_gradient(trek_var_from(test_tensor(2, trek_dims(2, 3), 1)));
    REFUSED(trek_attention(q, q, q, &(trek_attention_opts){ .mask = mask }), TREK_ERR_SHAPE, "");
}

/* Makes q, k and v of one stream as leaves, and attention of them with its gradients: out has y, dq, dk and dv. */
static void attend_leaves(const int64_t sizes[3], trek_dtype dtype, const trek_attention_opts *opts, trek_var *out[4])
{
    trek_var *in[3];
    for (int i = 0; i < 3; i++)
        in[i] = wants_gradient(numbers(60 + (uint32_t)i, trek_dims(2, i ? 1 : 2, sizes[i > 0], sizes[2]), dtype, dtype));
    trek_seed(5); /* the same weights are dropped */
    out[0] = trek_attention(in[0], in[1], in[2], opts);
    assert_non_null(out[0]);
    trek_var *with = numbers(64, trek_var_shape(out[0]), dtype, dtype);
    assert_int_equal(trek_backward(trek_sum(trek_mul(out[0], with), trek_dims_all(), false)), TREK_OK);
    for (int i = 0; i < 3; i++)
        assert_non_null(out[1 + i] = trek_var_grad(in[i]));
}

/* Under a causal mask the products leave out what no query sees. The result is that of a mask that says the same, with which
 * everything is computed: triangles that end anywhere in tiles, blocks of queries and blocks of keys. */
static void causal_is_a_mask(void **state)
{
    for (int k = 0; k < 48; k++) {
        trek_scope scope = trek_scope_begin();
        const trek_dtype dtype = k % 2 ? TREK_F64 : TREK_F32;
        int64_t sizes[3];
        for (int d = 0; d < 3; d++)
            sizes[d] = 1 + (int64_t)((test_number(300 + (uint32_t)k, (uint32_t)d) + 1) / 2 * (d == 2 ? 80 : k % 3 ? 150 : 600));
        trek_tensor *ones = trek_tensor_ones(trek_dims(sizes[0], sizes[1]), TREK_F32, test_device());
        trek_var *mask = trek_gt_scalar(trek_tril(trek_var_from(ones), 0), 0);
        const double p = k % 5 == 4 ? 0.3 : 0;
        trek_var *got[4], *want[4];
        attend_leaves(sizes, dtype, &(trek_attention_opts){ .causal = true, .dropout = p }, got);
        attend_leaves(sizes, dtype, &(trek_attention_opts){ .mask = mask, .dropout = p }, want);
        char what[100];
        snprintf(what, sizeof what, "round %d: %d queries, %d keys, depth %d", k, (int)sizes[0], (int)sizes[1], (int)sizes[2]);
        for (int i = 0; i < 4; i++)
            if (i == 0 || i == 3 || (sizes[0] > 1 && sizes[1] > 1)) /* of one key or query the gradients cancel */
                near(got[i], want[i], dtype == TREK_F64 ? 1e-15 : 4e-7, what);
        trek_scope_end(scope);
    }
}

/* Up to 8 queries have a way of their own on the CPU: they are what they are among more, which go by tiles. All but a few
 * keys are to be seen, over several blocks of them; `turned`: the depth does not lie side by side. */
static void few_among_many(int64_t heads, int64_t groups, int64_t keys, int64_t depth, trek_dtype dtype, bool turned)
{
    enum { MANY = 40 };
    trek_var *q = numbers(1, trek_dims(2, heads, MANY, depth), dtype, dtype);
    trek_var *k = turned ? trek_transpose(numbers(2, trek_dims(2, groups, depth, keys), dtype, dtype), 2, 3)
                         : numbers(2, trek_dims(2, groups, keys, depth), dtype, dtype);
    trek_var *v = numbers(3, trek_dims(2, groups, keys, depth), dtype, dtype);
    trek_var *mask = trek_gt_scalar(numbers(4, trek_dims(2, 1, MANY, keys), TREK_F32, TREK_F32), -1.5);
    trek_var *whole = trek_attention(q, k, v, &(trek_attention_opts){ .mask = mask });
    double most = trek_var_item(trek_max(trek_abs(whole), trek_dims_all(), false));
    for (int64_t n = 1, i = 0; n <= 9; n++, i += 3) {
        trek_attention_opts opts = { .mask = trek_narrow(mask, 2, i, n) };
        trek_var *off = trek_sub(trek_attention(trek_narrow(q, 2, i, n), k, v, &opts), trek_narrow(whole, 2, i, n));
        double worst = trek_var_item(trek_max(trek_abs(off), trek_dims_all(), false));
        if (!(worst <= most * (dtype == TREK_F64 ? 1e-14 : 3e-6)))
            fail_msg("%d queries, %d keys, depth %d are off by %g of %g", (int)n, (int)keys, (int)depth, worst, most);
    }
}

static void few_queries(void **state)
{
    const trek_dtype dtypes[] = { TREK_F32, TREK_F64 };
    for (int k = 0; k < 2; k++) {
        few_among_many(2, 2, 600, 64, dtypes[k], false);
        few_among_many(4, 2, 259, 70, dtypes[k], false);
        few_among_many(3, 1, 513, 128, dtypes[k], false);
        few_among_many(1, 1, 1, 1, dtypes[k], false);
        few_among_many(2, 1, 300, 33, dtypes[k], true);
        few_among_many(1, 1, 30, 300, dtypes[k], false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bf16_and_others_opt_in_once), TEST(bf16_deep_heads_fit), TEST(bf16_is_f64_rounded), TEST(f16_is_f64_rounded),
        TEST(bf16_tiles_end_anywhere), TEST(f16_tiles_end_anywhere), TEST(bf16_sharp_scores), TEST(large_masks_of_whole_rows),
        TEST(learned_masks), TEST(causal_is_a_mask), TEST(few_queries), TEST(cudnn_takes_what_it_can), TEST(cudnn_plans_are_kept),
        TEST(cudnn_failures),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
