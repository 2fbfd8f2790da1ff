/* SPDX-License-Identifier: Apache-2.0 */
/* Caches of keys and values: forwards of parts against forwards of the whole, for learned, rotary and sinusoidal positions, at
 * random cuts, in rows of several lengths; rows that are dropped, exchanged, begun anew; what is refused, and that it changes
 * nothing. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "nn/kv_cache.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tensor/shapes.h"
#include "tests/nn/decoder.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static double distance(trek_var *a, trek_var *b)
{
    if (!a || !b)
        fail_msg("%s", trek_error());
    assert_true(trek_shape_equal(trek_var_shape(a), trek_var_shape(b)));
    trek_var *most = trek_max(trek_abs(trek_sub(trek_cast(a, TREK_F64), trek_cast(b, TREK_F64))), trek_dims_all(), false);
    return trek_var_item(most);
}

static trek_kv_cache *cache_of(int64_t rows, int64_t most)
{
    trek_kv_cache *cache = trek_kv_cache_new(&(trek_kv_cache_opts){ .batch = rows, .max_length = most });
    if (!cache)
        fail_msg("%s", trek_error());
    return cache;
}

static trek_var *cached(trek_module *model, trek_kv_cache *cache, trek_var *x, const int64_t *counts)
{
    return trek_forward_cached(model, cache, &x, 1, counts);
}

static int between(uint32_t stream, uint32_t k, int low, int high)
{
    return low + (int)((double)(test_number(stream, k) + 1) / 2 * (high - low + 1));
}

static const struct precision {
    trek_dtype dtype;
    double tolerance;
} precisions[] = { { TREK_F64, 1e-12 }, { TREK_F32, 2e-5 }, { TREK_BF16, 0.06 }, { TREK_F16, 0.01 } };

/* The precisions of a kind of decoder: all; on a slow device every second one, in turn. */
enum { PRECISIONS = sizeof precisions / sizeof *precisions };
static size_t first_precision(int kind) { return test_short_on_device() ? (size_t)kind % 2 : 0; }
static size_t next_precision(size_t p) { return p + (test_short_on_device() ? 2 : 1); }

/* --- parts against the whole ------------------------------------------------------------------------- */

/* Cuts of 1 to 7 positions, so that single ones, several, and a growing room are met. */
static void check_cuts(trek_module *model, trek_var *tokens, trek_var *whole, int64_t most, double tolerance, uint32_t stream)
{
    int64_t rows = trek_var_size(tokens, 0), steps = trek_var_size(tokens, 1);
    trek_kv_cache *cache = cache_of(rows, most);
    uint32_t draw = 0;
    for (int64_t at = 0, n; at < steps; at += n) {
        n = draw % 2 == 0 ? 1 : between(stream, draw, 1, 7);
        n = n < steps - at ? n : steps - at;
        draw++;
        trek_scope scope = trek_scope_begin();
        trek_var *y = cached(model, cache, trek_narrow(tokens, 1, at, n), NULL);
        double off = distance(y, trek_narrow(whole, 1, at, n));
        if (!(off <= tolerance))
            fail_msg("positions %d .. %d are off by %g", (int)at, (int)(at + n), off);
        assert_false(trek_var_requires_grad(y));
        trek_scope_end(scope);
        assert_int_equal(trek_kv_cache_length(cache, rows - 1), at + n);
    }
    assert_true(trek_kv_cache_bytes(cache) > 0);
    trek_kv_cache_free(&cache);
    assert_null(cache);
}

static void test_parts(void **state)
{
    for (int kind = 0; kind < DECODERS; kind++)
        for (size_t p = first_precision(kind); p < PRECISIONS; p = next_precision(p)) {
            trek_module *model = decoder_new(kind, 3, precisions[p].dtype);
            trek_scope scope = trek_scope_begin();
            trek_var *tokens = decoder_tokens(3, 2, 75), *whole = trek_forward(model, tokens);
            check_cuts(model, tokens, whole, 0, precisions[p].tolerance, (uint32_t)p);
            check_cuts(model, tokens, whole, 75, precisions[p].tolerance, 40 + (uint32_t)p);
            trek_scope_end(scope);
            trek_module_free(&model);
        }
}

/* Rows go on by numbers of their own, down to none; each is what it is by itself. */
static void check_rows(decoder_kind kind, trek_dtype dtype, double tolerance)
{
    enum { ROWS = 3, MOST = 5, FORWARDS = 12, ALL = MOST * FORWARDS };
    trek_module *model = decoder_new(kind, 2, dtype);
    trek_scope scope = trek_scope_begin();
    trek_var *tokens = decoder_tokens(5, ROWS, ALL), *whole = trek_forward(model, tokens);
    trek_kv_cache *cache = cache_of(ROWS, 0);
    int64_t done[ROWS] = { 0 };
    for (uint32_t k = 0; k < FORWARDS; k++) {
        int64_t counts[ROWS], steps = k % 3 == 2 ? 1 : MOST;
        trek_var *parts[ROWS];
        for (uint32_t r = 0; r < ROWS; r++) {
            counts[r] = between(9, k * ROWS + r, k == 0 ? 1 : 0, (int)steps);
            parts[r] = trek_narrow(trek_narrow(tokens, 0, r, 1), 1, done[r], steps); /* padding: what comes later */
        }
        trek_var *y = cached(model, cache, trek_cat(parts, ROWS, 0), counts);
        for (int64_t r = 0; r < ROWS; r++) {
            if (counts[r] > 0)
                assert_true(distance(trek_narrow(trek_narrow(y, 0, r, 1), 1, 0, counts[r]),
                                     trek_narrow(trek_narrow(whole, 0, r, 1), 1, done[r], counts[r])) <= tolerance);
            done[r] += counts[r];
            assert_int_equal(trek_kv_cache_length(cache, r), done[r]);
        }
    }
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_module_free(&model);
}

static void test_rows(void **state)
{
    for (int kind = 0; kind < DECODERS; kind++)
        for (size_t p = first_precision(kind); p < PRECISIONS; p = next_precision(p))
            check_rows(kind, precisions[p].dtype, precisions[p].tolerance);
}

/* --- rows that change ----------------------------------------------------------------------------------- */

static void test_truncate_and_reset(void **state)
{
    trek_module *model = decoder_new(ROTARY, 2, TREK_F64);
    trek_scope scope = trek_scope_begin();
    trek_var *tokens = decoder_tokens(6, 2, 12), *other = decoder_tokens(8, 2, 12);
    trek_var *mixed = trek_cat((trek_var *[]){ trek_narrow(tokens, 1, 0, 5), trek_narrow(other, 1, 5, 7) }, 2, 1);
    trek_var *whole = trek_forward(model, mixed);
    trek_kv_cache *cache = cache_of(2, 0);
    assert_non_null(cached(model, cache, tokens, NULL));
    assert_int_equal(trek_kv_cache_truncate(cache, -1, 5), TREK_OK);
    assert_int_equal(trek_kv_cache_truncate(cache, 0, 100), TREK_OK);
    assert_int_equal(trek_kv_cache_length(cache, 0), 5);
    trek_var *y = cached(model, cache, trek_narrow(other, 1, 5, 7), NULL);
    assert_true(distance(y, trek_narrow(whole, 1, 5, 7)) < 1e-12);
    assert_int_equal(trek_kv_cache_truncate(cache, 1, 11), TREK_OK); /* one row goes back by one */
    assert_int_equal(trek_kv_cache_length(cache, 0), 12);
    assert_int_equal(trek_kv_cache_length(cache, 1), 11);
    y = cached(model, cache, trek_narrow(mixed, 1, 11, 1), (int64_t[]){ 0, 1 });
    assert_true(distance(trek_narrow(y, 0, 1, 1), trek_narrow(trek_narrow(whole, 0, 1, 1), 1, 11, 1)) < 1e-12);
    int64_t held = trek_kv_cache_bytes(cache);
    assert_int_equal(trek_kv_cache_reset(cache), TREK_OK);
    assert_int_equal(trek_kv_cache_length(cache, 1), 0);
    assert_int_equal(trek_kv_cache_bytes(cache), held);
    assert_true(distance(cached(model, cache, mixed, NULL), whole) < 1e-12);
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_module_free(&model);
}

/* Rows 2, 0, 0 of three that have different lengths. */
static void test_reorder(void **state)
{
    trek_module *model = decoder_new(LEARNED, 2, TREK_F64);
    trek_scope scope = trek_scope_begin();
    trek_var *tokens = decoder_tokens(10, 3, 9), *more = decoder_tokens(11, 4, 2);
    trek_kv_cache *cache = cache_of(3, 0);
    int64_t counts[] = { 4, 9, 6 }, order[] = { 2, 0, 0, 1 };
    assert_non_null(cached(model, cache, tokens, counts));
    assert_int_equal(trek_kv_cache_reorder(cache, order, 4), TREK_OK);
    assert_int_equal(trek_kv_cache_rows(cache), 4);
    trek_var *y = cached(model, cache, more, NULL);
    for (int64_t r = 0; r < 4; r++) {
        trek_var *row[] = { trek_narrow(trek_narrow(tokens, 0, order[r], 1), 1, 0, counts[order[r]]),
                            trek_narrow(more, 0, r, 1) };
        trek_var *whole = trek_forward(model, trek_cat(row, 2, 1));
        assert_true(distance(trek_narrow(y, 0, r, 1), trek_narrow(whole, 1, counts[order[r]], 2)) < 1e-12);
        assert_int_equal(trek_kv_cache_length(cache, r), counts[order[r]] + 2);
    }
    FAILS(trek_kv_cache_reorder(cache, (int64_t[]){ 4 }, 1), TREK_ERR_ARGUMENT, "row: 4; there are 4");
    FAILS(trek_kv_cache_reorder(cache, order, 0), TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_kv_cache_reorder(cache, (int64_t[]){ 1 }, 1), TREK_OK);
    assert_non_null(cached(model, cache, decoder_tokens(1, 1, 1), NULL));
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_module_free(&model);
}

/* A NaN that a row had does not come back by way of masked positions. */
static void test_reset_forgets(void **state)
{
    trek_module *model = decoder_new(WAVES, 1, TREK_F64);
    trek_scope scope = trek_scope_begin();
    trek_kv_cache *cache = cache_of(2, 0);
    trek_var *weight = trek_module_find(model, "0.weight"), *kept = trek_clone(weight);
    assert_int_equal(trek_tensor_copy_from(trek_var_data(weight), trek_var_data(trek_full_like(weight, NAN))), TREK_OK);
    assert_non_null(cached(model, cache, decoder_tokens(1, 2, 9), NULL));
    assert_int_equal(trek_tensor_copy_from(trek_var_data(weight), trek_var_data(kept)), TREK_OK);
    assert_int_equal(trek_kv_cache_reset(cache), TREK_OK);
    trek_var *tokens = decoder_tokens(2, 2, 4);
    assert_non_null(cached(model, cache, trek_narrow(tokens, 1, 0, 3), (int64_t[]){ 2, 3 }));
    trek_var *y = cached(model, cache, trek_narrow(tokens, 1, 2, 1), NULL), *whole = trek_forward(model, tokens);
    assert_true(distance(trek_narrow(y, 0, 0, 1), trek_narrow(trek_narrow(whole, 0, 0, 1), 1, 2, 1)) < 1e-12);
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_module_free(&model);
}

/* A decoder's attention to an encoder's result is as ever; that to itself goes on. */
static void test_encoder_memory(void **state)
{
    trek_transformer_opts o = { .d_model = 8, .heads = 2, .dim_feedforward = 12, .layers = 2, .causal = true, .dtype = TREK_F64,
                                .device = test_device() };
    trek_module *decoder = trek_nn_transformer_decoder_with(&o);
    assert_int_equal(trek_module_train(decoder, false), TREK_OK);
    trek_scope scope = trek_scope_begin();
    trek_kv_cache *cache = cache_of(2, 0);
    trek_var *x = trek_cast(trek_var_from(test_tensor(1, trek_dims(2, 7, 8), 1)), TREK_F64);
    trek_var *memory = trek_cast(trek_var_from(test_tensor(2, trek_dims(2, 5, 8), 1)), TREK_F64);
    trek_var *whole = trek_forward_many(decoder, (trek_var *[]){ x, memory }, 2);
    for (int64_t t = 0; t < 7; t++) {
        trek_var *y = trek_forward_cached(decoder, cache, (trek_var *[]){ trek_narrow(x, 1, t, 1), memory }, 2, NULL);
        assert_true(distance(y, trek_narrow(whole, 1, t, 1)) < 1e-12);
    }
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_module_free(&decoder);
}

/* --- what a module asks -------------------------------------------------------------------------------- */

static void test_outside(void **state)
{
    trek_var *tokens = decoder_tokens(1, 2, 4), *x = trek_cast(trek_reshape(tokens, trek_dims(2, 4, 1)), TREK_F32);
    trek_var *positions = trek_token_positions(tokens);
    assert_int_equal(trek_var_ndim(positions), 1);
    double *list = test_read(trek_var_data(positions));
    for (int k = 0; k < 4; k++)
        assert_true(list[k] == k);
    free(list);
    assert_ptr_equal(trek_last_positions(x), x);
    REFUSED(trek_token_positions(trek_narrow(trek_select(tokens, 0, 0), 0, 0, 2)), TREK_ERR_SHAPE, "must be [B, T, ...]");
    trek_var *q = trek_cast(trek_reshape(decoder_tokens(2, 6, 8), trek_dims(1, 2, 3, 8)), TREK_F64);
    trek_attention_opts causal = { .causal = true };
    assert_true(distance(trek_attention_cached(q, q, q, &causal), trek_attention(q, q, q, &causal)) == 0);
    REFUSED(trek_attention_cached(q, q, q, NULL), TREK_ERR_ARGUMENT, "only causal attention can be cached");
}

/* A module that does as it is told. */
typedef struct probe {
    trek_module base;
    trek_kv_cache *cache;
    int layers, steps, depth;
    trek_dtype dtype;
    bool nests, masks, drops, blind, fails;
} probe;

static trek_var *probe_forward(trek_module *self, trek_var *tokens)
{
    probe *p = (probe *)self;
    int64_t rows = trek_var_size(tokens, 0), steps = trek_var_size(tokens, 1) + p->steps;
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(rows, 2, steps, p->depth), p->dtype, test_device()));
    trek_attention_opts opts = { .causal = !p->blind, .dropout = p->drops ? 0.5 : 0 };
    if (p->masks)
        opts.mask = trek_var_from(trek_tensor_ones(trek_dims(steps, steps), TREK_BOOL, test_device()));
    if (p->nests) {
        trek_kv_cache_free(&p->cache);
        assert_non_null(p->cache);
        expect_error(TREK_ERR_STATE, "in use by a forward");
        FAILS(trek_kv_cache_reset(p->cache), TREK_ERR_STATE, "");
        return trek_forward_cached(self, p->cache, &tokens, 1, NULL);
    }
    if (!trek_token_positions(tokens))
        return NULL;
    for (int k = 0; k < p->layers && x; k++)
        x = trek_attention_cached(x, x, x, &opts);
    return p->fails ? trek_reshape(x, trek_dims(1, 2)) : x;
}

static const trek_module_class probe_class = { .name = "probe", .size = sizeof(probe), .forward = probe_forward };

static void refuse(probe *p, probe as, trek_var *tokens, const int64_t *counts, trek_status status, const char *part)
{
    as.base = p->base;
    as.cache = p->cache;
    *p = as;
    int64_t before = trek_kv_cache_length(p->cache, 0);
    REFUSED(cached(&p->base, p->cache, tokens, counts), status, part);
    assert_int_equal(trek_kv_cache_length(p->cache, 0), before);
    *p = (probe){ .base = p->base, .cache = p->cache, .layers = 2, .depth = 8 };
}

static void test_refused(void **state)
{
    trek_module *base = trek_module_new(&probe_class);
    probe *p = (probe *)base;
    p->cache = cache_of(2, 6);
    trek_scope scope = trek_scope_begin();
    trek_var *two = decoder_tokens(1, 2, 2), *three = decoder_tokens(1, 3, 2);
    refuse(p, (probe){ .layers = 0, .depth = 8 }, two, NULL, TREK_ERR_STATE, "nothing is cached");
    refuse(p, (probe){ .layers = 3, .depth = 4, .fails = true }, two, NULL, TREK_ERR_SHAPE, "");
    assert_int_equal(trek_kv_cache_bytes(p->cache), 0);
    assert_non_null(cached(base, p->cache, two, NULL));
    assert_int_equal(trek_kv_cache_bytes(p->cache), 2 * 2 * 2 * 2 * 6 * 8 * 4);
    refuse(p, (probe){ .layers = 1, .depth = 8 }, two, NULL, TREK_ERR_STATE, "fewer than in the forwards before");
    refuse(p, (probe){ .layers = 3, .depth = 8 }, two, NULL, TREK_ERR_STATE, "the forwards before had 2");
    refuse(p, (probe){ .layers = 2, .depth = 4 }, two, NULL, TREK_ERR_SHAPE, "layer 1 of the cache has [2, 2, 6, 8]");
    refuse(p, (probe){ .layers = 2, .depth = 8, .dtype = TREK_F64 }, two, NULL, TREK_ERR_DTYPE, "keys: dtype f64");
    refuse(p, (probe){ .layers = 2, .depth = 8 }, three, NULL, TREK_ERR_ARGUMENT, "batch: 3; the cache has 2 rows");
    refuse(p, (probe){ .layers = 2, .depth = 8, .steps = 1 }, two, NULL, TREK_ERR_ARGUMENT, "positions: 3 in a forward of 2");
    refuse(p, (probe){ .layers = 2, .depth = 8 }, two, (int64_t[]){ 1, 3 }, TREK_ERR_ARGUMENT, "count: 3");
    refuse(p, (probe){ .layers = 2, .depth = 8 }, two, (int64_t[]){ -1, 1 }, TREK_ERR_ARGUMENT, "count: -1");
    refuse(p, (probe){ .layers = 2, .depth = 8, .masks = true }, two, NULL, TREK_ERR_ARGUMENT, "a mask together with the cache");
    refuse(p, (probe){ .layers = 2, .depth = 8, .drops = true }, two, NULL, TREK_ERR_ARGUMENT, "dropout together with the cache");
    refuse(p, (probe){ .layers = 2, .depth = 8, .blind = true }, two, NULL, TREK_ERR_ARGUMENT,
           "only causal attention can be cached");
    refuse(p, (probe){ .layers = 2, .depth = 8, .nests = true }, two, NULL, TREK_ERR_STATE, "inside another cached forward");
    refuse(p, (probe){ .layers = 2, .depth = 8 }, decoder_tokens(1, 2, 5), NULL, TREK_ERR_ARGUMENT, "the cache holds 6");
    assert_non_null(cached(base, p->cache, decoder_tokens(1, 2, 5), (int64_t[]){ 4, 4 })); /* padding needs no room */
    assert_int_equal(trek_kv_cache_length(p->cache, 1), 6);
    assert_null(trek_forward_cached(NULL, p->cache, &two, 1, NULL));
    trek_error_clear();
    assert_null(trek_forward_cached(base, NULL, &two, 1, NULL));
    trek_error_clear();
    assert_null(trek_forward_cached(base, p->cache, NULL, 1, NULL));
    trek_error_clear();
    trek_scope_end(scope);
    assert_int_equal(trek_kv_cache_length(p->cache, 2), -1);
    expect_error(TREK_ERR_ARGUMENT, "row: 2; there are");
    FAILS(trek_kv_cache_truncate(p->cache, 2, 0), TREK_ERR_ARGUMENT, "");
    trek_kv_cache_free(&p->cache);
    trek_module_free(&base);
}

static void test_layers_refuse(void **state)
{
    trek_transformer_opts o = { .d_model = 8, .heads = 2, .layers = 1, .dropout = TREK_ZERO, .device = test_device() };
    trek_module *blind = trek_nn_transformer_encoder_with(&o), *learns = decoder_new(WAVES, 1, TREK_F32);
    trek_scope scope = trek_scope_begin();
    trek_kv_cache *cache = cache_of(2, 0);
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(2, 3, 8), 1));
    REFUSED(trek_forward_cached(blind, cache, &x, 1, NULL), TREK_ERR_ARGUMENT, "only causal attention can be cached");
    assert_int_equal(trek_module_train(learns, true), TREK_OK);
    trek_var *tokens = decoder_tokens(1, 2, 3);
    REFUSED(trek_forward_cached(learns, cache, &tokens, 1, NULL), TREK_ERR_ARGUMENT, "dropout together with the cache");
    assert_int_equal(trek_module_train(learns, false), TREK_OK);
    tokens = decoder_tokens(1, 2, LONGEST + 1);
    REFUSED(trek_forward_cached(learns, cache, &tokens, 1, NULL), TREK_ERR_SHAPE, "T up to 160");
    trek_autocast_begin(TREK_BF16);
    tokens = decoder_tokens(1, 2, 3);
    assert_non_null(trek_forward_cached(learns, cache, &tokens, 1, NULL));
    trek_autocast_end();
    REFUSED(trek_forward_cached(learns, cache, &tokens, 1, NULL), TREK_ERR_DTYPE,
            "keys: dtype f32; layer 1 of the cache has bf16");
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_module_free(&blind);
    trek_module_free(&learns);
    REFUSED(trek_kv_cache_new(&(trek_kv_cache_opts){ .batch = -1 }), TREK_ERR_ARGUMENT, ".batch: -1");
    assert_null(trek_kv_cache_new(&(trek_kv_cache_opts){ .max_length = -1 }));
    trek_error_clear();
}

/* Each allocation of a forward, a growth, an exchange fails once: rows are as they were, and what comes later is right. */
static void test_without_memory(void **state)
{
    if (!test_on_cpu())
        return;
    trek_module *model = decoder_new(WAVES, 2, TREK_F64);
    trek_scope scope = trek_scope_begin();
    trek_var *tokens = decoder_tokens(3, 2, 70), *whole = trek_forward(model, tokens);
    trek_kv_cache *cache = cache_of(2, 0);
    assert_non_null(cached(model, cache, trek_narrow(tokens, 1, 0, 60), NULL));
    int failures = 0;
    for (int64_t k = 1; k < 60; k++) {
        trek_var *next = trek_narrow(tokens, 1, 60, 10);
        trek_memory_release_cached(test_device());
        test_memory.fail_count = 1000; /* the library tries again */
        test_allocator_restart(k);
        trek_status moved = trek_kv_cache_reorder(cache, (int64_t[]){ 1, 0 }, 2);
        trek_status back = moved == TREK_OK ? trek_kv_cache_reorder(cache, (int64_t[]){ 1, 0 }, 2) : TREK_OK;
        trek_var *y = moved == TREK_OK && back == TREK_OK ? cached(model, cache, next, NULL) : NULL;
        test_allocator_restart(0);
        failures += !y;
        trek_error_clear();
        if (back != TREK_OK)
            assert_int_equal(trek_kv_cache_reorder(cache, (int64_t[]){ 1, 0 }, 2), TREK_OK);
        if (y) {
            assert_true(distance(y, trek_narrow(whole, 1, 60, 10)) < 1e-12);
            assert_int_equal(trek_kv_cache_truncate(cache, -1, 60), TREK_OK);
        }
        assert_int_equal(trek_kv_cache_length(cache, 0), 60);
    }
    assert_true(failures > 5);
    assert_true(distance(cached(model, cache, trek_narrow(tokens, 1, 60, 10), NULL), trek_narrow(whole, 1, 60, 10)) < 1e-12);
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_module_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts), cmocka_unit_test(test_rows), cmocka_unit_test(test_truncate_and_reset),
        cmocka_unit_test(test_reorder), cmocka_unit_test(test_reset_forgets), cmocka_unit_test(test_encoder_memory),
        TEST(test_outside),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_layers_refuse), cmocka_unit_test(test_without_memory),
    };
    test_allocator_use();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
