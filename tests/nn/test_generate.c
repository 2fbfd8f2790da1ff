/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling: what filters leave against Hugging Face's steps written plainly, how often tokens come, that seeds repeat.
 * Generation: with a cache, without, and by a written loop; rows of several lengths against each alone; ends. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/generate.h"
#include "tensor/copies.h"
#include "tests/nn/decoder.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

/* --- filters ------------------------------------------------------------------------------------- */

enum { V = 50 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of the logits processors of transformers 4: RepetitionPenalty, Temperature, TopK, TopP, one after the other. */
static void written(double *x, const trek_sample_opts *o, const int64_t *seen, int64_t n_seen)
{
    bool is_seen[V] = { false };
    double sorted[V], penalty = o->repetition_penalty ? o->repetition_penalty : 1;
    for (int64_t k = 0; k < n_seen; k++)
        is_seen[seen[k]] = true;
    for (int k = 0; k < V; k++)
        if (is_seen[k])
            x[k] = x[k] < 0 ? x[k] * penalty : x[k] / penalty;
    for (int k = 0; k < V; k++)
        x[k] /= o->temperature ? o->temperature : 1;
    if (o->top_k > 0) {
        memcpy(sorted, x, sizeof sorted);
        qsort(sorted, V, sizeof *sorted, ascending);
        double least = sorted[V - (o->top_k < V ? o->top_k : V)];
        for (int k = 0; k < V; k++)
            x[k] = x[k] < least ? -INFINITY : x[k];
    }
    double sum = 0, below = 0, top = -INFINITY;
    for (int k = 0; k < V; k++)
        top = x[k] > top ? x[k] : top;
    for (int k = 0; k < V; k++)
        sum += exp(x[k] - top);
    for (int left = V; left > 1 && o->top_p > 0 && o->top_p < 1; left--) { /* the least of what is left; of equals the last */
        int least = -1;
        for (int k = 0; k < V; k++)
            if (x[k] > -INFINITY && (least < 0 || x[k] <= x[least]))
                least = k;
        below += exp(x[least] - top) / sum;
        if (below > 1 - o->top_p)
            break;
        x[least] = -INFINITY;
    }
}

static trek_var *random_logits(uint32_t stream, int64_t rows, trek_dtype dtype)
{
    trek_tensor *tensor = test_tensor(stream, trek_dims(rows, V), 4), *cast = trek_tensor_cast(tensor, dtype);
    trek_tensor_release(tensor);
    return trek_var_from(cast);
}

static void test_filters(void **state)
{
    const double temperatures[] = { 0, 0.3, 2.5 }, top_ps[] = { 0, 0.05, 0.6, 0.95, 1 }, penalties[] = { 0, 1.4, 0.8 };
    const int64_t top_ks[] = { 0, 1, 7, V, 3 * V }, seen[] = { 3, 3, 17, 0, 49, 21 };
    const int64_t *seen_rows[] = { seen, seen + 2, seen };
    int64_t n_seen[] = { 6, 3, 0 };
    const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16 };
    int checked = 0;
    for (int k = 0; k < 3 * 5 * 3 * 5; k++) {
        trek_sample_opts o = { .temperature = temperatures[k % 3], .top_p = top_ps[k / 3 % 5], .top_k = top_ks[k / 15 % 5],
                               .repetition_penalty = penalties[k / 75], .seen = seen_rows, .n_seen = n_seen };
        trek_scope scope = trek_scope_begin();
        trek_var *logits = random_logits((uint32_t)k, 3, dtypes[k % 3]), *filtered = trek_filter_logits(logits, &o);
        assert_non_null(filtered);
        assert_int_equal(trek_var_dtype(filtered), TREK_F64);
        double *x = test_read(trek_var_data(logits)), *y = test_read(trek_var_data(filtered));
        for (int r = 0; r < 3; r++) {
            written(x + r * V, &o, seen_rows[r], n_seen[r]);
            for (int j = 0; j < V; j++, checked++)
                if (x[r * V + j] != y[r * V + j])
                    fail_msg("case %d, row %d, token %d: %g, not %g", k, r, j, y[r * V + j], x[r * V + j]);
        }
        free(x), free(y);
        trek_scope_end(scope);
    }
    assert_int_equal(checked, 225 * 3 * V);
}

static trek_var *vector(const double *values, int64_t n)
{
    return trek_var_from(trek_tensor_from_data(values, trek_dims(n), TREK_F64, test_device()));
}

/* Of many tokens only those that matter are put in order: many equal ones (bf16), flat and steep, against all of them in order.
 */
static void test_many_words(void **state)
{
    enum { MANY = 20000 };
    for (int k = 0; k < 6; k++) {
        trek_scope scope = trek_scope_begin();
        double scale = k < 3 ? 0.5 : 9, p = k % 3 == 0 ? 0.5 : k % 3 == 1 ? 0.97 : 0.0001, sum = 0, below = 0;
        trek_tensor *drawn = test_tensor(20 + (uint32_t)k, trek_dims(MANY), scale);
        trek_var *logits = trek_cast(trek_var_from(drawn), k % 2 ? TREK_BF16 : TREK_F32);
        double *x = test_read(trek_var_data(logits));
        double *y = test_read(trek_var_data(trek_filter_logits(logits, &(trek_sample_opts){ .top_p = p })));
        double *sorted = malloc(MANY * sizeof *sorted), least = INFINITY;
        int64_t kept = 0, equal = 0, expected = 0;
        memcpy(sorted, x, MANY * sizeof *x);
        qsort(sorted, MANY, sizeof *sorted, ascending);
        for (int j = 0; j < MANY; j++) {
            sum += exp(sorted[j]);
            kept += y[j] > -INFINITY;
            least = y[j] > -INFINITY && y[j] < least ? y[j] : least;
        }
        for (int j = 0; j < MANY; j++) {
            below += exp(sorted[j]) / sum;
            if (below > 1 - p || j == MANY - 1) {
                expected = MANY - j;
                break;
            }
        }
        assert_int_equal(kept, expected);
        for (int j = 0; j < MANY; j++) {
            equal += x[j] == least;
            assert_true(x[j] == least || (y[j] > -INFINITY) == (x[j] > least));
            assert_true(x[j] != least || y[j] == x[j] || equal > 1); /* of equals the first ones stay */
        }
        free(x), free(y), free(sorted);
        trek_scope_end(scope);
    }
}

/* Equal logits, infinite ones, none. */
static void test_edges(void **state)
{
    const double equal[] = { 1, 2, 2, 0, 2 }, above[] = { 1, INFINITY, NAN, -INFINITY, 3 },
        none[] = { -INFINITY, NAN, -INFINITY };
    double *y = test_read(trek_var_data(trek_filter_logits(vector(equal, 5), &(trek_sample_opts){ .top_k = 2 })));
    assert_true(y[0] == -INFINITY && y[1] == 2 && y[2] == 2 && y[3] == -INFINITY && y[4] == 2); /* with what equals the second */
    free(y);
    y = test_read(trek_var_data(trek_filter_logits(vector(equal, 5), &(trek_sample_opts){ .top_p = 0.5 })));
    assert_true(y[1] == 2 && y[2] == 2 && y[4] == -INFINITY && y[0] == -INFINITY); /* of equals the first ones */
    free(y);
    y = test_read(trek_var_data(trek_filter_logits(vector(equal, 5), &(trek_sample_opts){ .temperature = TREK_ZERO })));
    assert_true(y[1] == 2 && y[2] == -INFINITY && y[4] == -INFINITY);
    free(y);
    int64_t token;
    for (uint64_t seed = 0; seed < 20; seed++) {
        assert_int_equal(trek_sample_logits(vector(above, 5), &(trek_sample_opts){ .seed = seed }, &token), TREK_OK);
        assert_int_equal(token, 1);
    }
    assert_int_equal(trek_sample_logits(vector(above, 5), &(trek_sample_opts){ .temperature = TREK_ZERO, .top_p = 0.5 }, &token),
                     TREK_OK);
    assert_int_equal(token, 1);
    token = 77;
    FAILS(trek_sample_logits(vector(none, 3), NULL, &token), TREK_ERR_ARGUMENT, "row 0 leaves no token");
    assert_int_equal(token, 77);
    const trek_sample_opts wrong[] = { { .temperature = -1 }, { .temperature = INFINITY }, { .top_k = -1 }, { .top_p = 1.5 },
                                       { .top_p = NAN }, { .repetition_penalty = -2 } };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        REFUSED(trek_filter_logits(vector(equal, 5), &wrong[k]), TREK_ERR_ARGUMENT, "sample_logits: .");
    }
    const int64_t far[] = { 5 }, *rows[] = { far }, one = 1;
    REFUSED(trek_filter_logits(vector(equal, 5), &(trek_sample_opts){ .repetition_penalty = 2, .seen = rows, .n_seen = &one }),
            TREK_ERR_ARGUMENT, "seen: token 5; must be below 5");
    REFUSED(trek_filter_logits(vector(equal, 5), &(trek_sample_opts){ .repetition_penalty = 2 }), TREK_ERR_ARGUMENT,
            "seen tokens");
    REFUSED(trek_filter_logits(trek_cast(vector(equal, 5), TREK_I64), NULL), TREK_ERR_DTYPE, "floating");
    REFUSED(trek_filter_logits(trek_reshape(vector(equal, 5), trek_dims(1, 1, 5)), NULL), TREK_ERR_SHAPE, "[V] or [B, V]");
    assert_null(trek_filter_logits(NULL, NULL));
    trek_error_clear();
}

/* Chi squared of many draws against the probabilities of what is left. */
static void test_frequencies(void **state)
{
    enum { DRAWS = 20000, ROWS = 20 };
    const trek_sample_opts all[] = { { 0 }, { .temperature = 1.7 }, { .top_k = 6 }, { .top_p = 0.8, .temperature = 0.7 } };
    for (size_t which = 0; which < sizeof all / sizeof *all; which++) {
        trek_scope scope = trek_scope_begin();
        trek_sample_opts o = all[which];
        trek_var *one = random_logits(3, 1, TREK_F32), *many = trek_expand(one, trek_dims(ROWS, V));
        double *score = test_read(trek_var_data(trek_filter_logits(one, &o))), sum = 0, squared = 0;
        int seen[V] = { 0 }, kinds = 0;
        int64_t tokens[ROWS];
        for (int k = 0; k < DRAWS / ROWS; k++) {
            o.seed = 12, o.step = (uint64_t)k;
            assert_int_equal(trek_sample_logits(many, &o, tokens), TREK_OK);
            for (int r = 0; r < ROWS; r++)
                seen[tokens[r]]++;
        }
        for (int k = 0; k < V; k++)
            sum += exp(score[k]);
        for (int k = 0; k < V; k++) {
            double expected = exp(score[k]) / sum * DRAWS;
            assert_true(expected > 0 || seen[k] == 0);
            squared += expected > 0 ? (seen[k] - expected) * (seen[k] - expected) / expected : 0;
            kinds += expected > 0;
        }
        free(score);
        double deviates = (squared - (kinds - 1)) / sqrt(2.0 * (kinds - 1));
        if (!(fabs(deviates) < 4))
            fail_msg("case %zu: chi squared %g of %d kinds", which, squared, kinds);
        trek_scope_end(scope);
    }
}

static void test_seeds(void **state)
{
    trek_var *logits = random_logits(1, 9, TREK_F32);
    int64_t first[9], again[9], other[9];
    assert_int_equal(trek_sample_logits(logits, &(trek_sample_opts){ .seed = 5, .step = 2 }, first), TREK_OK);
    assert_int_equal(trek_sample_logits(logits, &(trek_sample_opts){ .seed = 5, .step = 2 }, again), TREK_OK);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(trek_sample_logits(logits, &(trek_sample_opts){ .seed = 6, .step = 2 }, other), TREK_OK);
    assert_memory_not_equal(first, other, sizeof first);
    assert_int_equal(trek_sample_logits(logits, &(trek_sample_opts){ .seed = 5, .step = 3 }, other), TREK_OK);
    assert_memory_not_equal(first, other, sizeof first);
    FAILS(trek_sample_logits(logits, NULL, NULL), TREK_ERR_ARGUMENT, "");
}

/* --- generation ------------------------------------------------------------------------------------ */

enum { ROWS = 3, NEW = 15 };
static const int64_t prompt_a[] = { 5, 1, 30, 2, 2, 9 }, prompt_b[] = { 36 }, prompt_c[] = { 0, 7, 7 };
static const int64_t *const prompts[] = { prompt_a, prompt_b, prompt_c };
static const int64_t lengths[] = { 6, 1, 3 };

static void generated(trek_module *model, const trek_generate_opts *o, int64_t *tokens, int64_t *counts)
{
    SUCCEEDS(trek_generate(model, prompts, lengths, ROWS, o, tokens, counts));
}

static void test_cache_or_not(void **state)
{
    const trek_sample_opts samples[] = { { .temperature = TREK_ZERO }, { .seed = 3, .top_k = 9, .top_p = 0.9 },
                                         { .seed = 4, .temperature = 1.5, .repetition_penalty = 1.3 } };
    for (int kind = 0; kind < DECODERS; kind++)
        for (size_t k = 0; k < sizeof samples / sizeof *samples; k++) {
            trek_module *model = decoder_new(kind, 2, TREK_F64);
            trek_generate_opts o = { .sample = samples[k], .max_new_tokens = NEW };
            int64_t tokens[ROWS * NEW], counts[ROWS], plain[ROWS * NEW];
            generated(model, &o, tokens, counts);
            o.no_cache = true;
            generated(model, &o, plain, counts);
            assert_memory_equal(tokens, plain, sizeof tokens);
            for (int r = 0; r < ROWS; r++)
                assert_int_equal(counts[r], NEW);
            trek_module_free(&model);
        }
}

/* Greedy, by a loop over whole forwards of one row. */
static void test_as_written(void **state)
{
    trek_module *model = decoder_new(LEARNED, 2, TREK_F64);
    int64_t tokens[ROWS * NEW], counts[ROWS];
    generated(model, &(trek_generate_opts){ .sample = { .temperature = TREK_ZERO }, .max_new_tokens = NEW }, tokens, counts);
    for (int r = 0; r < ROWS; r++) {
        int64_t text[32];
        memcpy(text, prompts[r], (size_t)lengths[r] * sizeof *text);
        for (int64_t k = 0; k < NEW; k++) {
            int64_t n = lengths[r] + k;
            trek_scope scope = trek_scope_begin();
            trek_var *x = trek_var_from(trek_tensor_from_data(text, trek_dims(1, n), TREK_I64, test_device()));
            trek_var *y = trek_select(trek_select(trek_forward(model, x), 1, n - 1), 0, 0);
            text[n] = (int64_t)trek_var_item(trek_argmax(y, trek_dims(0), false));
            trek_scope_end(scope);
            assert_int_equal(tokens[r * NEW + k], text[n]);
        }
    }
    trek_module_free(&model);
}

typedef struct listener {
    int64_t rows[64], tokens[64];
    int n, stop_row, stop_after;
} listener;

static bool listen(int64_t row, int64_t token, void *arg)
{
    listener *l = arg;
    l->rows[l->n] = row;
    l->tokens[l->n++] = token;
    int own = 0;
    for (int k = 0; k < l->n; k++)
        own += l->rows[k] == row;
    return row != l->stop_row || own < l->stop_after;
}

static void test_ends(void **state)
{
    trek_module *model = decoder_new(ROTARY, 2, TREK_F64);
    int64_t whole[ROWS * NEW], tokens[ROWS * NEW], counts[ROWS];
    trek_generate_opts o = { .sample = { .seed = 9 }, .max_new_tokens = NEW };
    generated(model, &o, whole, counts);
    int64_t eos[] = { whole[0 * NEW + 4], whole[2 * NEW + 9] };
    listener l = { .stop_row = 1, .stop_after = 2 };
    o.eos = eos, o.n_eos = 2, o.on_token = listen, o.arg = &l;
    generated(model, &o, tokens, counts);
    int heard = 0;
    for (int r = 0; r < ROWS; r++) {
        int64_t expected = 0;
        for (bool over = false; !over && expected < NEW; expected++)
            over = whole[r * NEW + expected] == eos[0] || whole[r * NEW + expected] == eos[1] || (r == 1 && expected == 1);
        assert_int_equal(counts[r], expected);
        assert_memory_equal(tokens + r * NEW, whole + r * NEW, (size_t)expected * sizeof *tokens);
        heard += (int)expected;
    }
    assert_true(counts[0] <= 5 && counts[1] <= 2);
    assert_int_equal(l.n, heard);
    assert_int_equal(trek_generate(model, prompts, lengths, ROWS, NULL, (int64_t[ROWS * 20]){ 0 }, counts), TREK_OK);
    assert_int_equal(counts[1], 20);
    trek_module_free(&model);
}

static trek_var *flat_forward(trek_module *self, trek_var *tokens)
{
    return trek_cast(tokens, TREK_F32);
}

static const trek_module_class flat_class = { .name = "flat", .size = sizeof(trek_module), .forward = flat_forward };

static void test_refused(void **state)
{
    trek_module *model = decoder_new(WAVES, 1, TREK_F32), *flat = trek_module_new(&flat_class);
    int64_t tokens[ROWS * NEW], counts[ROWS];
    const trek_generate_opts few = { .max_new_tokens = NEW };
    FAILS(trek_generate(model, prompts, lengths, 0, &few, tokens, counts), TREK_ERR_ARGUMENT, "prompts: 0");
    FAILS(trek_generate(model, prompts, (int64_t[]){ 6, 0, 3 }, ROWS, &few, tokens, counts), TREK_ERR_ARGUMENT,
          "prompt 1 has 0 tokens");
    FAILS(trek_generate(model, prompts, lengths, ROWS, &(trek_generate_opts){ .max_new_tokens = -1 }, tokens, counts),
          TREK_ERR_ARGUMENT, ".max_new_tokens: -1");
    FAILS(trek_generate(model, prompts, lengths, ROWS, &(trek_generate_opts){ .n_eos = 1 }, tokens, counts),
          TREK_ERR_ARGUMENT, "");
    FAILS(trek_generate(model, prompts, lengths, ROWS,
                        &(trek_generate_opts){ .max_new_tokens = NEW, .sample = { .top_p = 2 } }, tokens, counts),
          TREK_ERR_ARGUMENT, ".top_p: 2");
    FAILS(trek_generate(flat, prompts, lengths, ROWS, &few, tokens, counts), TREK_ERR_STATE, "nothing is cached");
    trek_generate_opts plain = { .max_new_tokens = NEW, .no_cache = true };
    FAILS(trek_generate(flat, prompts, lengths, ROWS, &plain, tokens, counts), TREK_ERR_SHAPE, "must be [3, 6, V]");
    FAILS(trek_generate(NULL, prompts, lengths, ROWS, &few, tokens, counts), TREK_ERR_ARGUMENT, "");
    trek_module_free(&model);
    trek_module_free(&flat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filters), cmocka_unit_test(test_many_words), TEST(test_edges),
        cmocka_unit_test(test_frequencies), TEST(test_seeds), cmocka_unit_test(test_cache_or_not),
        cmocka_unit_test(test_as_written), cmocka_unit_test(test_ends), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
