/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling tokens from logits: filters, then a draw. This runs on the host in f64, since a row is only some 100
 * thousand numbers per token. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/generate.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"
#include "tensor/random_internal.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"
#include "tensor/tensor.h"

typedef struct candidate {
    double score;
    int64_t token;
} candidate;

typedef struct sampler {
    double temperature, top_p, penalty;
    int64_t top_k;            /* 0 for all */
    const trek_sample_opts *opts;
    int64_t words;            /* the tokens in a row */
    candidate *sorted;        /* [words] scratch memory */
    unsigned char *marks;     /* [words] scratch memory, zeros between uses */
} sampler;

static trek_status check_options(const trek_sample_opts *o, sampler *s)
{
    *s = (sampler){ .temperature = trek_option(o->temperature, 1), .top_p = trek_option(o->top_p, 1),
                    .penalty = trek_option(o->repetition_penalty, 1), .top_k = o->top_k, .opts = o };
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return trek_fail(TREK_ERR_ARGUMENT, "sample_logits: .temperature: %g; must be finite and not negative", s->temperature);
    if (s->top_k < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "sample_logits: .top_k: %" PRId64 "; must be 0 or more", s->top_k);
    if (!(s->top_p >= 0 && s->top_p <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "sample_logits: .top_p: %g; must be inside [0, 1]", s->top_p);
    if (!(s->penalty > 0) || isinf(s->penalty))
        return trek_fail(TREK_ERR_ARGUMENT, "sample_logits: .repetition_penalty: %g; must be finite and above 0", s->penalty);
    if (s->penalty != 1 && (!o->seen || !o->n_seen))
        return trek_fail_missing("sample_logits", "seen tokens, for the repetition penalty");
    return TREK_OK;
}

/* --- filters ------------------------------------------------------------------------------------- */

/* Penalises each token once, however often it occurs. */
static trek_status penalise(sampler *s, double *row, const int64_t *seen, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (seen[k] < 0 || seen[k] >= s->words)
            return trek_fail(TREK_ERR_ARGUMENT, "sample_logits: seen: token %" PRId64 "; must be below %" PRId64, seen[k],
                             s->words);
    for (int64_t k = 0; k < n; k++) {
        double *x = &row[seen[k]];
        if (!s->marks[seen[k]])
            *x = *x < 0 ? *x * s->penalty : *x / s->penalty;
        s->marks[seen[k]] = 1;
    }
    for (int64_t k = 0; k < n; k++)
        s->marks[seen[k]] = 0;
    return TREK_OK;
}

/* Returns whether x is likelier than y. Of equal ones the lower token leads. */
static bool leads(candidate x, candidate y) { return x.score != y.score ? x.score > y.score : x.token < y.token; }

/* Sorts the least likely first. */
static int by_score(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return leads(*x, *y) ? 1 : leads(*y, *x) ? -1 : 0;
}

/* Returns the middle one of three. */
static candidate middle(candidate a, candidate b, candidate c)
{
    if (leads(b, a) != leads(c, a))
        return a;
    return leads(a, b) != leads(c, b) ? b : c;
}

/* Moves the k likeliest of n to the front by quickselect, with the last of them at k - 1. */
static void select_first(candidate *x, int64_t n, int64_t k)
{
    int64_t low = 0, high = n - 1;
    while (low < high) {
        candidate pivot = middle(x[low], x[low + (high - low) / 2], x[high]);
        int64_t i = low, j = high;
        while (i <= j) {
            while (leads(x[i], pivot))
                i++;
            while (leads(pivot, x[j]))
                j--;
            if (i <= j) {
                candidate swap = x[i];
                x[i++] = x[j];
                x[j--] = swap;
            }
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
}

/* Copies what may still be chosen to s->sorted, and returns how many there are. */
static int64_t gather(sampler *s, const double *row)
{
    int64_t n = 0;
    for (int64_t k = 0; k < s->words; k++)
        if (row[k] > -INFINITY)
            s->sorted[n++] = (candidate){ row[k], k };
    return n;
}

static void keep_top_k(sampler *s, double *row)
{
    int64_t n = gather(s, row);
    if (s->top_k >= n)
        return;
    select_first(s->sorted, n, s->top_k);
    double least = s->sorted[s->top_k - 1].score;
    for (int64_t k = 0; k < s->words; k++)
        if (row[k] < least)
            row[k] = -INFINITY;
}

/* Also correct for infinite scores. */
static double exponential(double score, double top) { return score == top ? 1 : exp(score - top); }

static double sum_of(const candidate *x, int64_t n, double top)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += exponential(x[k].score, top);
    return sum;
}

/* Few tokens have nearly all of the probability, so only as many are sorted as are needed. */
static void keep_top_p(sampler *s, double *row)
{
    int64_t n = gather(s, row), few = 32;
    candidate *x = s->sorted;
    double top = -INFINITY;
    for (int64_t k = 0; k < n; k++)
        top = x[k].score > top ? x[k].score : top;
    double sum = sum_of(x, n, top), below;
    do {
        few = 8 * few < n ? 8 * few : n;
        select_first(x, n, few);
        below = sum_of(x + few, n - few, top);
    } while (few < n && below / sum > 1 - s->top_p);
    for (int64_t k = few; k < n; k++)
        row[x[k].token] = -INFINITY;
    qsort(x, (size_t)few, sizeof *x, by_score);
    for (int64_t k = 0; k < few - 1; k++) {
        below += exponential(x[k].score, top);
        if (below / sum > 1 - s->top_p)
            return;
        row[x[k].token] = -INFINITY;
    }
}

static trek_status filter_row(sampler *s, double *row, int64_t number)
{
    for (int64_t k = 0; k < s->words; k++)
        row[k] = isnan(row[k]) ? -INFINITY : row[k];
    if (s->penalty != 1 && penalise(s, row, s->opts->seen[number], s->opts->n_seen[number]) != TREK_OK)
        return trek_error_status();
    bool greedy = s->temperature == 0;
    for (int64_t k = 0; k < s->words && !greedy; k++)
        row[k] /= s->temperature;
    if (gather(s, row) == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "sample_logits: logits: row %" PRId64 " leaves no token to choose from", number);
    if (s->top_k > 0 && !greedy)
        keep_top_k(s, row);
    if (s->top_p < 1 && !greedy)
        keep_top_p(s, row);
    return TREK_OK;
}

static int64_t largest(const double *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t k = 1; k < n; k++)
        best = row[k] > row[best] ? k : best;
    return best;
}

/* Keeps only the first of the largest. */
static void keep_largest(double *row, int64_t n)
{
    int64_t best = largest(row, n);
    for (int64_t k = 0; k < n; k++)
        row[k] = k == best ? row[k] : -INFINITY;
}

/* --- all rows -------------------------------------------------------------------------------------- */

/* Returns the filtered rows [*rows, s->words], to be freed, or NULL on failure. */
static double *filtered(trek_var *logits, const trek_sample_opts *opts, sampler *s, int64_t *rows)
{
    static const trek_sample_opts plain;
    char text[TREK_SHAPE_TEXT];
    if (!logits)
        return trek_fail_missing("sample_logits", "logits"), NULL;
    int ndim = trek_var_ndim(logits);
    if (!trek_dtype_is_float(trek_var_dtype(logits)))
        return trek_fail_null(TREK_ERR_DTYPE, "sample_logits: logits: dtype %s; must be floating",
                              trek_dtype_name(trek_var_dtype(logits)));
    if (ndim < 1 || ndim > 2 || trek_var_size(logits, -1) < 1)
        return trek_fail_null(TREK_ERR_SHAPE, "sample_logits: logits: %s; must be [V] or [B, V]",
                              trek_shape_format(trek_var_shape(logits), text, sizeof text));
    if (check_options(opts ? opts : &plain, s) != TREK_OK)
        return NULL;
    s->words = trek_var_size(logits, -1);
    *rows = ndim == 2 ? trek_var_size(logits, 0) : 1;
    size_t n = (size_t)(*rows * s->words), bytes = n * sizeof(double);
    double *all = trek_alloc(bytes + 1);
    s->sorted = trek_alloc((size_t)s->words * sizeof *s->sorted);
    s->marks = trek_calloc((size_t)s->words, 1);
    trek_status status = all && s->sorted && s->marks ? trek_tensor_to_host(trek_var_data(logits), TREK_F64, all, bytes)
                                                      : trek_error_status();
    for (int64_t r = 0; r < *rows && status == TREK_OK; r++)
        status = filter_row(s, all + r * s->words, r);
    trek_free(s->sorted);
    trek_free(s->marks);
    if (status == TREK_OK)
        return all;
    trek_free(all);
    return NULL;
}

trek_var *trek_filter_logits(trek_var *logits, const trek_sample_opts *opts)
{
    sampler s;
    int64_t rows;
    double *all = filtered(logits, opts, &s, &rows);
    if (!all)
        return NULL;
    for (int64_t r = 0; s.temperature == 0 && r < rows; r++)
        keep_largest(all + r * s.words, s.words);
    trek_tensor *made = trek_tensor_from_data(all, trek_var_shape(logits), TREK_F64, trek_cpu(0));
    trek_free(all);
    return made ? trek_var_from(made) : NULL;
}

/* Returns the first token at which the cumulative sum exceeds u times the total. */
static int64_t draw(const double *row, int64_t n, double u)
{
    int64_t best = largest(row, n), last = best;
    double top = row[best], sum = 0, reached = 0;
    for (int64_t k = 0; k < n; k++)
        sum += row[k] > -INFINITY ? exponential(row[k], top) : 0;
    for (int64_t k = 0; k < n; k++) {
        double p = row[k] > -INFINITY ? exponential(row[k], top) : 0;
        reached += p;
        if (p > 0)
            last = k;
        if (p > 0 && reached > u * sum)
            return k;
    }
    return last; /* rounding */
}

trek_status trek_sample_logits(trek_var *logits, const trek_sample_opts *opts, int64_t *tokens)
{
    sampler s;
    int64_t rows;
    if (!tokens)
        return trek_fail_missing("sample_logits", "tokens");
    double *all = filtered(logits, opts, &s, &rows);
    if (!all)
        return trek_error_status();
    for (int64_t r = 0; r < rows; r++) {
        uint32_t words[4];
        trek_philox(s.opts->seed, (uint64_t)r, (uint32_t)s.opts->step, (uint32_t)(s.opts->step >> 32), words);
        const double *row = all + r * s.words;
        tokens[r] = s.temperature == 0 ? largest(row, s.words) : draw(row, s.words, trek_uniform_f64(words[0], words[1]));
    }
    trek_free(all);
    return TREK_OK;
}
