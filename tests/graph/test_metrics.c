/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics against plain loops over the whole set, in batches of any sizes, one after another or merged; what they refuse. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/scoped.h"
#include "tests/support/support.h"
#include "trek.h"

enum { ROWS = 211, MOST_PARTS = 7 };

/* A set: scores and targets of `parts` classes, labels or outputs, which take few values, so that many are equal. */
typedef struct set {
    int64_t n, parts;
    double pred[ROWS * MOST_PARTS], target[ROWS * MOST_PARTS], weight[ROWS];
    int64_t target_width;
} set;

static uint32_t draws;
static double draw(void) { return 0.5 + 0.5 * test_number(77, draws++); }
static int64_t below(int64_t n) { return (int64_t)(draw() * (double)n) % n; }

static set *make_set(int64_t parts, bool labels, int64_t used)
{
    static set s;
    s = (set){ .n = ROWS, .parts = parts, .target_width = labels ? parts : 1 };
    for (int64_t k = 0; k < s.n * parts; k++)
        s.pred[k] = (double)below(16) / 16;
    for (int64_t k = 0; k < s.n * s.target_width; k++)
        s.target[k] = (double)(labels || parts == 1 ? below(2) : below(used));
    for (int64_t k = 0; k < s.n; k++)
        s.weight[k] = (double)below(4);
    return &s;
}

/* --- trek's value, in batches ----------------------------------------------------------------------------- */

typedef struct way {
    bool weighted, merged;
    trek_dtype pred, target;
} way;

static trek_var *part(const double *values, int64_t first, int64_t n, int64_t width, bool wide, trek_dtype dtype)
{
    trek_shape shape = wide ? trek_dims(n, width) : trek_dims(n);
    trek_tensor *t = trek_tensor_from_data(values + first * width, shape, TREK_F64, trek_cpu(0));
    return trek_to(trek_cast(trek_var_from(t), dtype), test_device());
}

static trek_tensor *values_of(const trek_metric_spec *spec, const set *s, way w)
{
    trek_metric *m = trek_metric_new(spec), *other = trek_metric_new(spec);
    assert_non_null(m);
    bool wide = spec->classes > 0 || spec->outputs > 1, labels = spec->multilabel || spec->outputs > 1;
    for (int64_t at = 0, n; at < s->n; at += n) {
        trek_scope inner = trek_scope_begin();
        n = at + 40 < s->n ? below(40) : s->n - at;
        trek_metric *to = w.merged && below(2) ? other : m;
        trek_var *pred = part(s->pred, at, n, s->parts, wide, w.pred),
            *target = part(s->target, at, n, s->target_width, labels, w.target);
        trek_status status = w.weighted ? trek_metric_update_weighted(to, pred, target,
                                                                      part(s->weight, at, n, 1, false, TREK_F32))
                                        : trek_metric_update(to, pred, target);
        SUCCEEDS(status);
        trek_scope_end(inner);
    }
    if (w.merged)
        assert_int_equal(trek_metric_merge(m, other), TREK_OK);
    trek_tensor *values = trek_metric_values(m, NULL);
    if (!values)
        fail_msg("%s", trek_error());
    if (trek_tensor_shape(values).ndim == 0)
        assert_true(trek_metric_compute(m, NULL) == trek_tensor_item(values) || isnan(trek_tensor_item(values)));
    trek_metric_free(&m);
    trek_metric_free(&other);
    assert_null(m);
    return values;
}

static void expect(const trek_metric_spec *spec, const set *s, const double *want, int64_t n)
{
    trek_tensor *first = NULL;
    for (int k = 0; k < 3; k++) { /* numbers of 16ths are exact in bf16 */
        way w = { s->weight[0] >= 0, k > 0, (trek_dtype[]){ TREK_F32, TREK_F64, TREK_BF16 }[k],
                  (trek_dtype[]){ TREK_I64, TREK_I32, TREK_I64 }[k] };
        if (spec->kind >= TREK_METRIC_KIND_MSE)
            w.target = TREK_F64;
        trek_tensor *got = values_of(spec, s, w);
        assert_int_equal(trek_tensor_numel(got), n);
        double *values = test_read(got);
        for (int64_t i = 0; i < n; i++)
            if (!(fabs(values[i] - want[i]) <= 1e-13 * (1 + fabs(want[i]))) && !(isnan(values[i]) && isnan(want[i])))
                fail_msg("kind %d average %d classes %d labels %d, value %d: %.17g instead of %.17g", spec->kind, spec->average,
                         (int)spec->classes, spec->multilabel, (int)i, values[i], want[i]);
        free(values);
        if (first && !spec->logits)
            assert_true(test_same_bits(first, got)); /* however it was divided */
        if (!first)
            first = got;
        else
            trek_tensor_release(got);
    }
    trek_tensor_release(first);
}

/* --- plain loops ------------------------------------------------------------------------------------------- */

static double weight_at(const set *s, int64_t k) { return s->weight[0] >= 0 ? s->weight[k] : 1; }

static int64_t best(const double *scores, int64_t n)
{
    int64_t at = 0;
    for (int64_t k = 1; k < n; k++)
        at = scores[k] > scores[at] ? k : at;
    return at;
}

static bool is_hit(const trek_metric_spec *spec, const set *s, int64_t row, int64_t c, bool *ignored)
{
    double target = s->target[row * s->target_width + (s->target_width > 1 ? c : 0)];
    *ignored = spec->ignore_index != 0 && target == (double)spec->ignore_index;
    return spec->classes > 0 && !spec->multilabel ? target == (double)c : target == 1;
}

static bool is_chosen(const trek_metric_spec *spec, const set *s, int64_t row, int64_t c)
{
    const double *scores = s->pred + row * s->parts;
    if (spec->classes > 0 && !spec->multilabel)
        return best(scores, s->parts) == c;
    return scores[c] > 0.5;
}

/* [tp, fp, fn, tn] of a class or label. */
static void count(const trek_metric_spec *spec, const set *s, int64_t c, double *to)
{
    bool ignored;
    memset(to, 0, 4 * sizeof *to);
    for (int64_t k = 0; k < s->n; k++) {
        bool hit = is_hit(spec, s, k, c, &ignored), chosen = is_chosen(spec, s, k, c);
        if (!ignored)
            to[hit ? chosen ? 0 : 2 : chosen ? 1 : 3] += weight_at(s, k);
    }
}

static double rate(const trek_metric_spec *spec, const double *c)
{
    double part = c[0], whole = c[0] + c[2], beta = spec->beta != 0 ? spec->beta : 1;
    if (spec->kind == TREK_METRIC_KIND_PRECISION)
        whole = c[0] + c[1];
    if (spec->kind == TREK_METRIC_KIND_F1) {
        double precision = c[0] + c[1] > 0 ? c[0] / (c[0] + c[1]) : 0, recall = whole > 0 ? c[0] / whole : 0;
        part = (1 + beta * beta) * precision * recall;
        whole = beta * beta * precision + recall;
    }
    if (spec->kind == TREK_METRIC_KIND_ACCURACY && (spec->multilabel || spec->classes == 0)) {
        part = c[0] + c[3];
        whole = c[0] + c[1] + c[2] + c[3];
    }
    return whole > 0 ? part / whole : 0;
}

static trek_metric_average average_of(const trek_metric_spec *spec)
{
    if (spec->classes == 0 && spec->outputs < 2)
        return TREK_METRIC_AVERAGE_MICRO;
    if (spec->average != TREK_METRIC_AVERAGE_DEFAULT)
        return spec->average;
    return spec->kind == TREK_METRIC_KIND_ACCURACY ? TREK_METRIC_AVERAGE_MICRO : TREK_METRIC_AVERAGE_MACRO;
}

static void expect_counts(const trek_metric_spec *spec, const set *s)
{
    double each[MOST_PARTS], all[4] = { 0 }, sum = 0, weights = 0, c[4];
    trek_metric_average average = average_of(spec);
    for (int64_t k = 0; k < s->parts; k++) {
        count(spec, s, k, c);
        each[k] = rate(spec, c);
        double weight = average == TREK_METRIC_AVERAGE_WEIGHTED ? c[0] + c[2] : spec->multilabel || c[0] + c[1] + c[2] > 0;
        sum += weight * each[k];
        weights += weight;
        for (int i = 0; i < 4; i++)
            all[i] += c[i];
    }
    double one = average == TREK_METRIC_AVERAGE_MICRO ? rate(spec, all) : sum / weights;
    bool are_many = average == TREK_METRIC_AVERAGE_EACH;
    expect(spec, s, are_many ? each : &one, are_many ? s->parts : 1);
}

/* The part of pairs that are in order, equal ones half; or precision's mean, threshold by threshold. */
static double curve(const trek_metric_spec *spec, const set *s, int64_t c, bool together)
{
    bool ignored, other_ignored;
    int64_t parts = together ? s->parts : 1;
    double pairs = 0, all = 0, precisions = 0, positives = 0;
    for (int64_t a = 0; a < s->n * parts; a++) {
        int64_t ca = together ? a % parts : c;
        if (!is_hit(spec, s, a / parts, ca, &ignored) || ignored)
            continue;
        double score = s->pred[a / parts * s->parts + ca], wa = weight_at(s, a / parts), above = 0, true_above = 0;
        for (int64_t b = 0; b < s->n * parts; b++) {
            int64_t cb = together ? b % parts : c;
            bool hit = is_hit(spec, s, b / parts, cb, &other_ignored);
            double other = s->pred[b / parts * s->parts + cb], wb = other_ignored ? 0 : weight_at(s, b / parts);
            above += other >= score ? wb : 0;
            true_above += other >= score && hit ? wb : 0;
            pairs += hit ? 0 : wa * wb * (other < score ? 1 : other == score ? 0.5 : 0);
            all += hit ? 0 : wa * wb;
        }
        precisions += above > 0 ? wa * true_above / above : 0;
        positives += wa;
    }
    if (spec->kind == TREK_METRIC_KIND_AUROC)
        return all > 0 ? pairs / all : (double)NAN;
    return positives > 0 ? precisions / positives : 0;
}

static void expect_scores(const trek_metric_spec *spec, const set *s)
{
    double each[MOST_PARTS], sum = 0, weights = 0, c[4];
    trek_metric_average average = average_of(spec);
    for (int64_t k = 0; k < s->parts; k++) {
        each[k] = curve(spec, s, k, false);
        count(spec, s, k, c);
        double weight = average == TREK_METRIC_AVERAGE_WEIGHTED ? c[0] + c[2] : 1;
        sum += weight * each[k];
        weights += weight;
    }
    double one = average == TREK_METRIC_AVERAGE_MICRO ? curve(spec, s, 0, true) : sum / weights;
    bool are_many = average == TREK_METRIC_AVERAGE_EACH;
    expect(spec, s, are_many ? each : &one, are_many ? s->parts : 1);
}

/* --- classes ------------------------------------------------------------------------------------------------- */

/* Every kind and average, with and without weights, and targets that are ignored. */
static void each_spec(int64_t parts, bool labels, int64_t used, void (*expected)(const trek_metric_spec *, const set *),
                      trek_metric_kind first, trek_metric_kind last)
{
    for (int variant = 0; variant < 4; variant += test_on_cpu() ? 1 : 3)
        for (trek_metric_kind kind = first; kind <= last; kind++)
            for (int average = 0; average <= (parts > 1 || labels ? (int)TREK_METRIC_AVERAGE_EACH : 0); average++) {
                set *s = make_set(parts, labels, used);
                trek_metric_spec spec = { .kind = kind, .classes = parts > 1 || labels ? parts : 0, .multilabel = labels,
                                          .average = (trek_metric_average)average };
                if (variant % 2 == 0)
                    s->weight[0] = -1;
                if (variant >= 2) {
                    spec.ignore_index = -100;
                    for (int64_t k = 0; k < s->n * s->target_width; k += 5)
                        s->target[k] = -100;
                }
                if (variant == 3 && kind == TREK_METRIC_KIND_F1)
                    spec.beta = 2;
                expected(&spec, s);
            }
}

static void test_counts(void **state)
{
    each_spec(1, false, 2, expect_counts, TREK_METRIC_KIND_ACCURACY, TREK_METRIC_KIND_F1);
    each_spec(5, false, 5, expect_counts, TREK_METRIC_KIND_ACCURACY, TREK_METRIC_KIND_F1);
    each_spec(7, false, 3, expect_counts, TREK_METRIC_KIND_ACCURACY, TREK_METRIC_KIND_F1); /* classes that are no target */
    each_spec(4, true, 2, expect_counts, TREK_METRIC_KIND_ACCURACY, TREK_METRIC_KIND_F1);
}

static void test_scores(void **state)
{
    each_spec(1, false, 2, expect_scores, TREK_METRIC_KIND_AUROC, TREK_METRIC_KIND_AVERAGE_PRECISION);
    each_spec(3, false, 3, expect_scores, TREK_METRIC_KIND_AUROC, TREK_METRIC_KIND_AVERAGE_PRECISION);
    each_spec(3, true, 2, expect_scores, TREK_METRIC_KIND_AUROC, TREK_METRIC_KIND_AVERAGE_PRECISION);
    each_spec(4, false, 3, expect_scores, TREK_METRIC_KIND_AVERAGE_PRECISION, TREK_METRIC_KIND_AVERAGE_PRECISION);
}

static void test_confusion(void **state)
{
    for (int form = 0; form < 3; form++) {
        set *s = make_set(form == 0 ? 1 : 4, form == 2, 4);
        trek_metric_spec spec = { .kind = TREK_METRIC_KIND_CONFUSION, .classes = form ? 4 : 0, .multilabel = form == 2 };
        double want[16] = { 0 };
        for (int64_t k = 0; k < s->n; k++)
            for (int64_t c = 0; c < s->parts; c++) {
                bool ignored, hit = is_hit(&spec, s, k, c, &ignored);
                if (form == 1 && hit)
                    want[c * 4 + best(s->pred + k * 4, 4)] += weight_at(s, k);
                if (form != 1)
                    want[c * 4 + 2 * hit + is_chosen(&spec, s, k, c)] += weight_at(s, k);
            }
        expect(&spec, s, want, form == 0 ? 4 : 16);
    }
}

static void test_top_k(void **state)
{
    for (int64_t k = 1; k <= 5; k++)
        for (int macro = 0; macro < 2; macro++) {
            set *s = make_set(5, false, 4);
            double hits[5] = { 0 }, all[5] = { 0 }, sum = 0, total = 0, rates = 0, classes = 0;
            for (int64_t row = 0; row < s->n; row++) {
                const double *scores = s->pred + row * 5;
                int64_t target = (int64_t)s->target[row], before = 0;
                for (int64_t c = 0; c < 5; c++)
                    before += scores[c] > scores[target] || (scores[c] == scores[target] && c < target);
                hits[target] += before < k ? weight_at(s, row) : 0;
                all[target] += weight_at(s, row);
            }
            for (int c = 0; c < 5; c++) {
                sum += hits[c];
                total += all[c];
                rates += all[c] > 0 ? hits[c] / all[c] : 0;
                classes += all[c] > 0;
            }
            if (k == 1 && macro) /* a class that is predicted counts, too */
                continue;
            double want = macro ? rates / classes : sum / total;
            expect(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_ACCURACY, .classes = 5, .top_k = k,
                                        .average = macro ? TREK_METRIC_AVERAGE_MACRO : TREK_METRIC_AVERAGE_MICRO },
                   s, &want, 1);
        }
}

/* Dimensions behind the classes, predicted classes instead of scores, logits, no samples at all. */
static trek_var *on_device(const double *values, trek_shape shape, trek_dtype dtype)
{
    return trek_var_from(test_values(values, shape, dtype));
}

static double compute_of(const trek_metric_spec *spec, trek_var *pred, trek_var *target, trek_var *weight)
{
    trek_metric *m = trek_metric_new(spec);
    trek_status status = m ? trek_metric_update_weighted(m, pred, target, weight) : trek_error_status();
    double value = status == TREK_OK ? trek_metric_compute(m, NULL) : (double)NAN;
    trek_metric_free(&m);
    return value;
}

static void test_forms(void **state)
{
    /* scores [2, 3, 2]: of 4 positions the classes 2 0, 1 1 */
    trek_var *scores = on_device((double[]){ 0, 9, 1, 0, 2, 0, 0, 1, 5, 3, 2, 2 }, trek_dims(2, 3, 2), TREK_F32);
    trek_var *target = on_device((double[]){ 2, 0, 0, 1 }, trek_dims(2, 2), TREK_I64);
    trek_metric_spec accuracy = { .kind = TREK_METRIC_KIND_ACCURACY, .classes = 3 };
    assert_float_equal(compute_of(&accuracy, scores, target, NULL), 0.75, 0);
    assert_float_equal(compute_of(&accuracy, scores, target, on_device((double[]){ 1, 3 }, trek_dims(2), TREK_F32)), 5. / 8, 0);
    assert_float_equal(compute_of(&accuracy, scores, target, on_device((double[]){ 1, 1, 6, 0 }, trek_dims(2, 2), TREK_F32)),
                       0.25, 0);
    trek_var *classes = on_device((double[]){ 2, 0, 1, 1 }, trek_dims(2, 2), TREK_U8);
    assert_float_equal(compute_of(&accuracy, classes, target, NULL), 0.75, 0);
    assert_float_equal(compute_of(&accuracy, trek_transpose(classes, 0, 1), trek_transpose(target, 0, 1), NULL), 0.75, 0);
    trek_var *logits = on_device((double[]){ -0.1, 0.3, 5, 0.2 }, trek_dims(4), TREK_F32),
        *bits = on_device((double[]){ 0, 1, 1, 0 }, trek_dims(4), TREK_F32);
    assert_float_equal(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_ACCURACY, .logits = true }, logits, bits, NULL),
                       0.75,
                       0);
    assert_float_equal(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_ACCURACY }, logits, bits, NULL), 0.75, 0);
    assert_float_equal(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_RECALL, .threshold = TREK_ZERO }, logits, bits,
                                  NULL),
                       1, 0);
    assert_float_equal(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_PRECISION, .threshold = 6, .zero_division = 1 },
                                  logits,
                                  bits, NULL), 1, 0);
    assert_float_equal(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_ACCURACY },
                                  trek_logical_not(trek_cast(bits, TREK_BOOL)),
                                  trek_cast(bits, TREK_BOOL), NULL), 0, 0);
    assert_true(isnan(compute_of(&accuracy, trek_narrow(scores, 0, 0, 0), trek_narrow(target, 0, 0, 0), NULL)));
    /* softmax makes other scores of different rows comparable: by logits the area of class 0 is 0 */
    trek_var *two = on_device((double[]){ 1, -3, 2, 2 }, trek_dims(2, 2), TREK_F32),
        *of_two = on_device((double[]){ 0, 1 }, trek_dims(2), TREK_I64);
    assert_float_equal(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_AUROC, .classes = 2, .logits = true }, two,
                                  of_two,
                                  NULL), 1, 0);
    assert_float_equal(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_AUROC, .classes = 2 }, two, of_two, NULL), 0.5,
                       0);
    trek_metric *m = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_CONFUSION, .classes = 2 });
    trek_tensor *zeros = trek_metric_values(m, NULL);
    double *values = test_read(zeros);
    for (int k = 0; k < 4; k++)
        assert_true(values[k] == 0);
    assert_int_equal(trek_metric_count(m), 0);
    free(values);
    trek_tensor_release(zeros);
    trek_metric_free(&m);
}

/* --- numbers ---------------------------------------------------------------------------------------------------- */

static double number_of(trek_metric_kind kind, const set *s, int64_t first, int64_t outputs, double *variance)
{
    double weights = 0, errors = 0, mean = 0, squares = 0;
    for (int64_t k = 0; k < s->n; k++)
        for (int64_t o = first; o < first + outputs; o++) {
            weights += weight_at(s, k);
            mean += weight_at(s, k) * s->target[k * s->parts + o];
        }
    mean /= weights;
    for (int64_t k = 0; k < s->n; k++)
        for (int64_t o = first; o < first + outputs; o++) {
            double target = s->target[k * s->parts + o], error = s->pred[k * s->parts + o] - target;
            errors += weight_at(s, k) * (kind == TREK_METRIC_KIND_MAE ? fabs(error) : error * error);
            squares += weight_at(s, k) * (target - mean) * (target - mean);
        }
    *variance = squares;
    if (kind == TREK_METRIC_KIND_R2)
        return 1 - errors / squares;
    return kind == TREK_METRIC_KIND_RMSE ? sqrt(errors / weights) : errors / weights;
}

static void test_numbers(void **state)
{
    for (trek_metric_kind kind = TREK_METRIC_KIND_MSE; kind <= TREK_METRIC_KIND_R2; kind++)
        for (int form = 0; form < 6; form++) {
            int64_t outputs = form < 2 ? 1 : 3;
            set *s = make_set(outputs, outputs > 1, 2);
            trek_metric_average average = (trek_metric_average[]){ TREK_METRIC_AVERAGE_DEFAULT, TREK_METRIC_AVERAGE_MACRO,
                                                                   TREK_METRIC_AVERAGE_MACRO,
                                                                   TREK_METRIC_AVERAGE_EACH, TREK_METRIC_AVERAGE_EACH,
                                                                   TREK_METRIC_AVERAGE_WEIGHTED }[form];
            if (average == TREK_METRIC_AVERAGE_WEIGHTED && kind != TREK_METRIC_KIND_R2)
                continue;
            for (int64_t k = 0; k < s->n * outputs; k++)
                s->target[k] = (double)below(64) / 16;
            if (form % 2)
                s->weight[0] = -1;
            double each[3], variance[3], sum = 0, weights = 0;
            for (int64_t o = 0; o < outputs; o++) {
                each[o] = number_of(kind, s, o, 1, &variance[o]);
                double weight = average == TREK_METRIC_AVERAGE_WEIGHTED ? variance[o] : 1;
                sum += weight * each[o];
                weights += weight;
            }
            bool are_many = average == TREK_METRIC_AVERAGE_EACH;
            double one = sum / weights;
            expect(&(trek_metric_spec){ .kind = kind, .outputs = outputs, .average = average }, s, are_many ? each : &one,
                   are_many ? outputs : 1);
        }
}

/* Targets far from zero; a constant one; one sample; what is not finite. */
static void test_r2(void **state)
{
    trek_metric_spec r2 = { .kind = TREK_METRIC_KIND_R2 };
    double far[4] = { 1e8 + 1, 1e8 + 2, 1e8 + 3, 1e8 + 4 }, near[4] = { 1e8 + 1.5, 1e8 + 2, 1e8 + 3, 1e8 + 4 };
    trek_var *t = on_device(far, trek_dims(4), TREK_F64), *p = on_device(near, trek_dims(4), TREK_F64);
    assert_float_equal(compute_of(&r2, p, t, NULL), 1 - 0.25 / 5, 1e-14);
    double same[3] = { 0.1, 0.1, 0.1 }, other[3] = { 0.1, 0.1, 0.2 };
    trek_var *c = on_device(same, trek_dims(3), TREK_F64), *d = on_device(other, trek_dims(3), TREK_F64);
    assert_float_equal(compute_of(&r2, c, c, NULL), 1, 0);
    assert_float_equal(compute_of(&r2, d, c, NULL), 0, 0);
    assert_true(isnan(compute_of(&r2, trek_narrow(c, 0, 0, 1), trek_narrow(c, 0, 0, 1), NULL)));
    trek_var *weight = on_device((double[]){ 0.1, 0.7, 0.3, 0.3 }, trek_dims(4), TREK_F64);
    double mean = (0.1 * 1 + 0.7 * 2 + 0.3 * 3 + 0.3 * 4) / 1.4, total = 0;
    for (int k = 0; k < 4; k++)
        total += (double[]){ 0.1, 0.7, 0.3, 0.3 }[k] * (k + 1 - mean) * (k + 1 - mean);
    assert_float_equal(compute_of(&r2, p, t, weight), 1 - 0.1 * 0.25 / total, 1e-12);
    trek_var *infinite = trek_div_scalar(t, 0), *nan = trek_sub(infinite, infinite);
    trek_metric_spec mse = { .kind = TREK_METRIC_KIND_MSE };
    assert_true(isinf(compute_of(&mse, infinite, t, NULL)));
    assert_true(isnan(compute_of(&mse, nan, t, NULL)));
    assert_true(isnan(compute_of(&r2, nan, t, NULL)));
    trek_metric *m = trek_metric_new(&mse); /* 0 beside 1e16 and -1e16 */
    double big[3] = { 1e8, 1, 1e-8 }, zero[3] = { 0 };
    assert_int_equal(trek_metric_update(m, on_device(big, trek_dims(3), TREK_F64), on_device(zero, trek_dims(3), TREK_F64)),
                     TREK_OK);
    assert_true(trek_metric_compute(m, NULL) == (1e16 + 1) / 3 || trek_metric_compute(m, NULL) == 10000000000000001. / 3);
    trek_metric_free(&m);
}

static void test_perplexity(void **state)
{
    enum { N = 6, T = 5, V = 7 };
    double logits[N * T * V], targets[N * T], weights[N], sum = 0, total = 0;
    for (int k = 0; k < N * T * V; k++)
        logits[k] = 4 * test_number(5, (uint32_t)k);
    for (int k = 0; k < N * T; k++)
        targets[k] = k % 4 == 3 ? -100 : (double)below(V);
    for (int k = 0; k < N; k++)
        weights[k] = 0.25 + k;
    for (int k = 0; k < N * T; k++) {
        double norm = 0;
        for (int v = 0; v < V; v++)
            norm += exp(logits[k * V + v]);
        if (targets[k] < 0)
            continue;
        sum += weights[k / T] * (log(norm) - logits[k * V + (int)targets[k]]);
        total += weights[k / T];
    }
    trek_metric *m = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_PERPLEXITY, .ignore_index = -100 });
    for (int first = 0, n; first < N; first += n) {
        n = first == 0 ? 4 : 2;
        trek_var *w = on_device(weights + first, trek_dims(n), TREK_F64);
        assert_int_equal(trek_metric_update_weighted(m, on_device(logits + first * T * V, trek_dims(n, T, V), TREK_F64),
                                                     on_device(targets + first * T, trek_dims(n, T), TREK_I64), w), TREK_OK);
    }
    assert_float_equal(trek_metric_compute(m, NULL), exp(sum / total), 1e-12 * exp(sum / total));
    assert_int_equal(trek_metric_count(m), N * T - N * T / 4);
    trek_metric_free(&m);
    trek_var *zero = on_device((double[]){ 1, 5, 3 }, trek_dims(1, 3), TREK_F64),
        *label = on_device((double[]){ 0 }, trek_dims(1), TREK_I64);
    assert_true(isnan(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_PERPLEXITY, .ignore_index = TREK_ZERO }, zero,
                                 label,
                                 NULL)));
    compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_PERPLEXITY }, zero, trek_sub_scalar(label, 100), NULL);
    assert_int_not_equal(trek_error_status(), TREK_OK); /* which cross entropy would ignore */
    trek_error_clear();
}

/* --- what is refused ----------------------------------------------------------------------------------------------- */

static void test_bad_specs(void **state)
{
    static const struct {
        trek_metric_spec spec;
        const char *text;
    } bad[] = {
        { { .kind = (trek_metric_kind)99 }, ".kind: 99" },
        { { .kind = TREK_METRIC_KIND_F1, .classes = 1 }, "at least 2" },
        { { .kind = TREK_METRIC_KIND_F1, .classes = -3 }, "at least 2" },
        { { .kind = TREK_METRIC_KIND_F1, .multilabel = true }, "the number of labels" },
        { { .kind = TREK_METRIC_KIND_F1, .average = TREK_METRIC_AVERAGE_MACRO }, "only metrics of several classes" },
        { { .kind = TREK_METRIC_KIND_CONFUSION, .classes = 3, .average = TREK_METRIC_AVERAGE_MACRO },
          "only metrics of several classes" },
        { { .kind = TREK_METRIC_KIND_F1, .classes = 3, .average = (trek_metric_average)7 }, ".average: unknown" },
        { { .kind = TREK_METRIC_KIND_F1, .classes = 3, .top_k = 2 }, "top_k" },
        { { .kind = TREK_METRIC_KIND_ACCURACY, .classes = 3, .top_k = 4 }, "top_k" },
        { { .kind = TREK_METRIC_KIND_ACCURACY, .classes = 3, .threshold = 0.3 }, "threshold" },
        { { .kind = TREK_METRIC_KIND_ACCURACY, .beta = 2 }, "beta" },
        { { .kind = TREK_METRIC_KIND_F1, .beta = -2 }, "beta" },
        { { .kind = TREK_METRIC_KIND_MSE, .classes = 3 }, "only metrics of classes" },
        { { .kind = TREK_METRIC_KIND_MSE, .ignore_index = 3 }, "ignore_index" },
        { { .kind = TREK_METRIC_KIND_MSE, .average = TREK_METRIC_AVERAGE_MICRO }, "errors of outputs" },
        { { .kind = TREK_METRIC_KIND_MSE, .average = TREK_METRIC_AVERAGE_WEIGHTED }, "errors of outputs" },
        { { .kind = TREK_METRIC_KIND_ACCURACY, .outputs = 3 }, "outputs" },
        { { .kind = TREK_METRIC_KIND_PERPLEXITY, .average = TREK_METRIC_AVERAGE_EACH }, "only metrics of several classes" },
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        REFUSED(trek_metric_new(&bad[k].spec), TREK_ERR_ARGUMENT, bad[k].text);
    }
    REFUSED(trek_metric_new(NULL), TREK_ERR_ARGUMENT, "spec");
    trek_metric *none = NULL;
    trek_metric_free(&none);
    trek_metric_free(NULL);
    trek_metric_reset(NULL);
    assert_int_equal(trek_metric_count(NULL), -1);
    trek_error_clear();
    assert_true(isnan(trek_metric_compute(NULL, NULL)));
    trek_error_clear();
    assert_null(trek_metric_values(NULL, NULL));
    trek_error_clear();
}

/* The batch is refused, on a GPU when it is read, and what was counted before stays. */
static void refused(const trek_metric_spec *spec, trek_var *pred, trek_var *target, trek_var *weight, trek_status wanted,
                    const char *text)
{
    trek_metric *m = trek_metric_new(spec);
    assert_non_null(m);
    trek_status status = trek_metric_update_weighted(m, pred, target, weight);
    if (status == TREK_OK && !test_on_cpu())
        status = trek_metric_count(m) < 0 ? trek_error_status() : TREK_OK;
    assert_int_equal(status, wanted);
    expect_error(wanted, text);
    assert_int_equal(trek_metric_count(m), 0);
    trek_metric_free(&m);
}

static void test_bad_batches(void **state)
{
    trek_metric_spec three = { .kind = TREK_METRIC_KIND_ACCURACY, .classes = 3 }, binary = { .kind = TREK_METRIC_KIND_F1 },
                     area = { .kind = TREK_METRIC_KIND_AUROC }, areas = { .kind = TREK_METRIC_KIND_AUROC, .classes = 3 },
                     labels = { .kind = TREK_METRIC_KIND_F1, .classes = 3, .multilabel = true },
                     mse = { .kind = TREK_METRIC_KIND_MSE },
                     outputs = { .kind = TREK_METRIC_KIND_MSE, .outputs = 3 }, words = { .kind = TREK_METRIC_KIND_PERPLEXITY };
    trek_var *scores = on_device((double[]){ 1, 2, 3, 4, 5, 6 }, trek_dims(2, 3), TREK_F32),
             *bad = on_device((double[]){ 1, 2, NAN, 4, 5, 6 }, trek_dims(2, 3), TREK_F32),
             *target = on_device((double[]){ 0, 2 }, trek_dims(2), TREK_I64),
             *out = on_device((double[]){ 0, 3 }, trek_dims(2), TREK_I64),
             *below_zero = on_device((double[]){ 0, -1 }, trek_dims(2), TREK_I64),
             *bits = on_device((double[]){ 0, 1 }, trek_dims(2), TREK_I64),
             *pair = on_device((double[]){ 0.1, 0.9 }, trek_dims(2), TREK_F32),
             *nan = on_device((double[]){ 0.1, NAN }, trek_dims(2), TREK_F32);
    refused(&three, scores, out, NULL, TREK_ERR_ARGUMENT, "target: 3 at row 1; must be inside [0, 3)");
    refused(&three, scores, below_zero, NULL, TREK_ERR_ARGUMENT, "target: -1 at row 1");
    refused(&three, out, target, NULL, TREK_ERR_ARGUMENT, "pred: class 3 at row 1");
    refused(&three, bad, target, NULL, TREK_ERR_ARGUMENT, "a score at row 0 is NaN");
    refused(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_ACCURACY, .classes = 3, .top_k = 2 }, bad, target, NULL,
            TREK_ERR_ARGUMENT,
            "NaN");
    refused(&three, pair, target, NULL, TREK_ERR_SHAPE, "number of classes");
    refused(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_ACCURACY, .classes = 4 }, scores, target, NULL, TREK_ERR_SHAPE,
            "[2, 3]");
    refused(&three, scores, on_device((double[]){ 0, 1, 2 }, trek_dims(3), TREK_I64), NULL, TREK_ERR_SHAPE, "[N, C, ...]");
    refused(&three, scores, target, on_device((double[]){ 1, -1 }, trek_dims(2), TREK_F32), TREK_ERR_ARGUMENT,
            "weight: -1 at row 1");
    refused(&three, scores, target, on_device((double[]){ 1, NAN }, trek_dims(2), TREK_F32), TREK_ERR_ARGUMENT, "weight: nan");
    refused(&three, scores, target, on_device((double[]){ 1, 1, 1 }, trek_dims(3), TREK_F32), TREK_ERR_SHAPE,
            "or of their samples");
    refused(&binary, pair, target, NULL, TREK_ERR_ARGUMENT, "must be 0 or 1");
    refused(&binary, nan, bits, NULL, TREK_ERR_ARGUMENT, "the score at row 1 is NaN");
    refused(&binary, scores, bits, NULL, TREK_ERR_SHAPE, "their shapes must be equal");
    refused(&labels, scores, scores, NULL, TREK_ERR_ARGUMENT, "must be 0 or 1");
    refused(&labels, pair, bits, NULL, TREK_ERR_SHAPE, "labels");
    refused(&area, nan, bits, NULL, TREK_ERR_ARGUMENT, "NaN");
    refused(&area, pair, target, NULL, TREK_ERR_ARGUMENT, "must be inside [0, 2)");
    refused(&areas, scores, out, NULL, TREK_ERR_ARGUMENT, "must be inside [0, 3)");
    refused(&areas, target, target, NULL, TREK_ERR_DTYPE, "floating");
    refused(&mse, scores, bits, NULL, TREK_ERR_SHAPE, "their shapes must be equal");
    refused(&outputs, pair, pair, NULL, TREK_ERR_SHAPE, "outputs");
    refused(&words, scores, scores, NULL, TREK_ERR_SHAPE, "they must be [..., C]");
    refused(&words, scores, pair, NULL, TREK_ERR_DTYPE, "integer");
    refused(&words, target, on_device((double[]){ 1 }, trek_dims_none(), TREK_I64), NULL, TREK_ERR_DTYPE, "floating");
    trek_metric *m = trek_metric_new(&three);
    assert_int_not_equal(trek_metric_update(m, NULL, target), TREK_OK);
    trek_error_clear();
    assert_int_equal(trek_metric_update(m, scores, target), TREK_OK);
    assert_int_equal(trek_metric_count(m), 2);
    trek_metric_reset(m);
    assert_int_equal(trek_metric_count(m), 0);
    trek_metric_free(&m);
}

static void test_one_class(void **state)
{
    trek_var *pair = on_device((double[]){ 0.1, 0.9 }, trek_dims(2), TREK_F32),
        *ones = on_device((double[]){ 1, 1 }, trek_dims(2), TREK_I64);
    trek_var *scores = on_device((double[]){ 1, 2, 3, 4, 5, 6 }, trek_dims(2, 3), TREK_F32),
        *target = on_device((double[]){ 0, 2 }, trek_dims(2), TREK_I64);
    assert_true(isnan(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_AUROC }, pair, ones, NULL)));
    expect_error(TREK_ERR_ARGUMENT, "no target is negative");
    assert_true(isnan(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_AUROC, .classes = 3 }, scores, target, NULL)));
    expect_error(TREK_ERR_ARGUMENT, "class 1 has no positive");
    trek_metric *m = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_AUROC, .classes = 3,
                                                          .average = TREK_METRIC_AVERAGE_EACH });
    assert_int_equal(trek_metric_update(m, scores, target), TREK_OK);
    trek_tensor *each = trek_metric_values(m, NULL);
    double *values = test_read(each);
    assert_true(values[0] == 0 && isnan(values[1]) && values[2] == 1);
    assert_true(isnan(trek_metric_compute(m, NULL)));
    expect_error(TREK_ERR_SHAPE, "trek_metric_values");
    free(values);
    trek_tensor_release(each);
    trek_metric_free(&m);
    assert_float_equal(compute_of(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_AVERAGE_PRECISION }, pair,
                                  trek_sub_scalar(ones, 1),
                                  NULL), 0, 0);
}

/* --- states ------------------------------------------------------------------------------------------------------------ */

static void fill(trek_metric *m, int from, int n)
{
    double scores[64 * 3], targets[64];
    for (int k = 0; k < n * 3; k++)
        scores[k] = (double)((from * 3 + k) * 7 % 16) / 16;
    for (int k = 0; k < n; k++)
        targets[k] = (from + k) % 3;
    assert_int_equal(trek_metric_update(m, on_device(scores, trek_dims(n, 3), TREK_F32),
                                        on_device(targets, trek_dims(n), TREK_I64)), TREK_OK);
}

static void test_state(void **state)
{
    for (int kind = 0; kind < 2; kind++) {
        trek_metric_spec spec = { .kind = kind ? TREK_METRIC_KIND_AUROC : TREK_METRIC_KIND_F1, .classes = 3 }, other_spec = spec;
        other_spec.average = TREK_METRIC_AVERAGE_WEIGHTED;
        trek_metric *whole = trek_metric_new(&spec), *first = trek_metric_new(&spec), *second = trek_metric_new(&spec),
            *other = trek_metric_new(&other_spec);
        fill(whole, 0, 50);
        fill(first, 0, 23);
        trek_tensor *kept = trek_metric_state(first);
        assert_int_equal(trek_metric_set_state(second, kept), TREK_OK);
        fill(second, 23, 27);
        assert_true(trek_metric_compute(second, NULL) == trek_metric_compute(whole, NULL));
        assert_int_equal(trek_metric_count(second), 50);
        assert_int_equal(trek_metric_set_state(second, kept), TREK_OK); /* in place of what there was */
        assert_int_equal(trek_metric_count(second), 23);
        assert_int_equal(trek_metric_merge(second, second), TREK_OK);
        assert_int_equal(trek_metric_count(second), 46);
        FAILS(trek_metric_set_state(other, kept), TREK_ERR_ARGUMENT, "different specs");
        FAILS(trek_metric_merge(other, first), TREK_ERR_ARGUMENT, "different specs");
        FAILS(trek_metric_merge(other, NULL), TREK_ERR_ARGUMENT, "");
        trek_metric *copy = trek_metric_join(NULL, first);
        assert_true(trek_metric_compute(copy, NULL) == trek_metric_compute(first, NULL));
        trek_metric_free(&copy);
        int64_t n = trek_tensor_numel(kept);
        double *numbers = test_read(kept);
        for (int64_t k = 0; k < 17; k++) /* each number of the head, and a length */
            for (int wrong = 0; wrong < 4; wrong++) {
                double before = numbers[k % 16];
                numbers[k % 16] = k == 16 ? before : (double[]){ NAN, -1, 1e300, 2.5 }[wrong];
                trek_tensor *damaged = trek_tensor_from_data(numbers, trek_dims(n - (k == 16) * (1 + wrong)), TREK_F64,
                                                             trek_cpu(0));
                numbers[k % 16] = before;
                bool is_number = (k == 4 && wrong == 1) || (k >= 9 && k < 12); /* of a spec that may be */
                trek_status status = trek_metric_set_state(second, damaged);
                assert_true(status == TREK_ERR_FORMAT || (is_number && status == TREK_ERR_ARGUMENT));
                trek_error_clear();
                assert_int_equal(trek_metric_count(second), 46);
                trek_tensor_release(damaged);
            }
        free(numbers);
        trek_tensor_release(kept);
        trek_metric_free(&whole);
        trek_metric_free(&first);
        trek_metric_free(&second);
        trek_metric_free(&other);
    }
    assert_null(trek_metric_state(NULL));
    trek_error_clear();
    assert_null(trek_metric_join(NULL, NULL));
    trek_error_clear();
}

/* Beside a checkpoint. */
static void test_file(void **state)
{
    char path[] = "/tmp/trek-metric-XXXXXX";
    close(mkstemp(path));
    trek_metric_spec spec = { .kind = TREK_METRIC_KIND_AVERAGE_PRECISION, .classes = 3, .average = TREK_METRIC_AVERAGE_WEIGHTED };
    trek_metric *whole = trek_metric_new(&spec), *first = trek_metric_new(&spec), *second = trek_metric_new(&spec);
    fill(whole, 0, 50);
    fill(first, 0, 31);
    trek_tensor *counted = trek_metric_state(first);
    trek_state *kept = trek_state_new();
    assert_int_equal(trek_state_add(kept, "metric", counted), TREK_OK);
    assert_int_equal(trek_state_write(kept, path), TREK_OK);
    trek_state *read = trek_state_read(path);
    assert_int_equal(trek_metric_set_state(second, trek_state_find(read, "metric")), TREK_OK);
    fill(second, 31, 19);
    assert_true(trek_metric_compute(second, NULL) == trek_metric_compute(whole, NULL));
    trek_state_free(&kept);
    trek_state_free(&read);
    trek_tensor_release(counted);
    trek_metric_free(&whole);
    trek_metric_free(&first);
    trek_metric_free(&second);
    unlink(path);
}

/* The caller's tensors are read when they are given, or copied. */
static void test_overwritten(void **state)
{
    trek_metric *m = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_MAE });
    trek_var *pred = on_device((double[]){ 1, 2 }, trek_dims(2), TREK_F32),
        *target = on_device((double[]){ 2, 4 }, trek_dims(2), TREK_F32),
             *weight = on_device((double[]){ 1, 3 }, trek_dims(2), TREK_F32);
    assert_int_equal(trek_metric_update_weighted(m, pred, target, weight), TREK_OK);
    trek_fill_(pred, 9);
    trek_fill_(target, -9);
    trek_fill_(weight, 0);
    assert_float_equal(trek_metric_compute(m, NULL), 7. / 4, 0);
    trek_metric_free(&m);
}

static void test_outside(void **state)
{
    trek_metric_spec spec = { .kind = TREK_METRIC_KIND_MAE };
    trek_var *x = on_device((double[]){ 1, 2 }, trek_dims(2), TREK_F32);
    FAILS(trek_record_metric("mae", &spec, x, x), TREK_ERR_STATE, "record_metric: ");
    FAILS(trek_record_metric_weighted("mae", &spec, x, x, x), TREK_ERR_STATE, "record_metric_weighted: ");
}

/* Without memory an update fails, and counts nothing or all of its batch. */
static void test_no_memory(void **state)
{
    if (!test_on_cpu())
        skip();
    trek_metric_spec spec = { .kind = TREK_METRIC_KIND_AUROC, .classes = 3, .logits = true };
    for (int64_t at = 1, failed = 1; failed; at++) {
        trek_metric *m = trek_metric_new(&spec);
        trek_var *scores = on_device((double[]){ 1, 2, 3, 4, 5, 6 }, trek_dims(2, 3), TREK_F64),
                 *target = on_device((double[]){ 0, 2 }, trek_dims(2), TREK_I64);
        test_allocator_restart(at);
        trek_status status = trek_metric_update(m, scores, target);
        trek_tensor *kept = status == TREK_OK ? trek_metric_state(m) : NULL;
        failed = !kept;
        test_allocator_restart(0);
        if (failed)
            assert_int_equal(trek_error_status(), TREK_ERR_MEMORY);
        trek_error_clear();
        assert_int_equal(trek_metric_count(m), status == TREK_OK ? 2 : 0);
        trek_tensor_release(kept);
        trek_metric_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_counts), TEST(test_scores), TEST(test_confusion), TEST(test_top_k), TEST(test_forms), TEST(test_numbers),
        TEST(test_r2), TEST(test_perplexity), TEST(test_bad_specs), TEST(test_bad_batches), TEST(test_one_class),
        TEST(test_state), TEST(test_file), TEST(test_overwritten), TEST(test_outside), TEST(test_no_memory),
    };
    test_allocator_use();
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
