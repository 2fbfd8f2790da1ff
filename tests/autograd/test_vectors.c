/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions that are several ops, or take options, against results and gradients stored from PyTorch (vectors/make.py): in
 * f64 to rounding, in f32 to a few units. The rows of ops.def are the op suite's. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/copies.h"
#include "tensor/shapes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"
#include "tests/support/ways.h"

/* --- the stored file: "name what ndim sizes..." and a line of numbers ----------- */

typedef struct stored {
    char name[40], what[8];
    trek_shape shape;
    double *v;
} stored;

static stored *entries;
static int n_entries;

static void read_numbers(stored *e, char *line)
{
    int64_t n = trek_shape_numel(e->shape);
    char *at = line;
    e->v = calloc((size_t)n + 1, sizeof *e->v);
    assert_non_null(e->v);
    for (int64_t i = 0; i < n; i++)
        e->v[i] = strtod(at, &at);
}

static int load(void **state)
{
    static char line[1 << 16], path[4096];
    const char *root = getenv("TREK_TEST_ROOT");
    snprintf(path, sizeof path, "%s/tests/vectors/ops.txt", root ? root : ".");
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "%s cannot be read\n", path);
        return -1;
    }
    while (fgets(line, sizeof line, file)) {
        entries = realloc(entries, sizeof *entries * (size_t)(n_entries + 1));
        stored *e = &entries[n_entries++];
        char *at = line;
        memset(e, 0, sizeof *e);
        sscanf(at, "%39s %7s %d", e->name, e->what, &e->shape.ndim);
        for (int skip = 0; skip < 3; skip++)
            at = strchr(at, ' ') ? strchr(at, ' ') + 1 : at + strlen(at);
        for (int d = 0; d < e->shape.ndim; d++)
            e->shape.sizes[d] = strtol(at, &at, 10);
        if (!fgets(line, sizeof line, file))
            break;
        read_numbers(e, line);
    }
    fclose(file);
    return n_entries > 100 ? 0 : -1;
}

static int unload(void **state)
{
    for (int k = 0; k < n_entries; k++)
        free(entries[k].v);
    free(entries);
    return 0;
}

static const stored *find(const char *name, const char *what)
{
    for (int k = 0; k < n_entries; k++)
        if (!strcmp(entries[k].name, name) && !strcmp(entries[k].what, what))
            return &entries[k];
    fail_msg("%s %s is not stored", name, what);
    return NULL;
}

/* --- comparing ------------------------------------------------------------------- */

static void compare(const char *name, const char *what, const trek_var *got, double tolerance)
{
    const stored *want = find(name, what);
    double *values = calloc((size_t)trek_shape_numel(want->shape) + 1, sizeof *values);
    if (!got)
        fail_msg("%s %s: nothing: %s", name, what, trek_error());
    if (!trek_shape_equal(trek_var_shape(got), want->shape)) {
        char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
        fail_msg("%s %s: %s, should be %s", name, what, trek_shape_format(trek_var_shape(got), a, sizeof a),
                 trek_shape_format(want->shape, b, sizeof b));
    }
    size_t bytes = sizeof *values * (size_t)trek_shape_numel(want->shape);
    assert_int_equal(trek_tensor_to_host(trek_var_data(got), TREK_F64, values, bytes), TREK_OK);
    for (int64_t i = 0; i < trek_shape_numel(want->shape); i++)
        if (!(fabs(values[i] - want->v[i]) <= tolerance * (1 + fabs(want->v[i]))))
            fail_msg("%s %s, element %lld: %.10g, should be %.10g", name, what, (long long)i, values[i], want->v[i]);
    free(values);
}

static trek_var *input(uint32_t stream, trek_shape shape, double scale, trek_dtype dtype, bool requires_grad)
{
    trek_tensor *f32 = test_tensor(stream, shape, scale), *t = trek_tensor_cast(f32, dtype);
    trek_var *v = trek_var_from(t);
    trek_tensor_release(f32);
    assert_non_null(v);
    if (requires_grad)
        assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

static trek_var *classes(trek_shape shape, int64_t c, trek_dtype dtype)
{
    double values[64];
    assert_in_range(trek_shape_numel(shape), 1, 64);
    for (int64_t i = 0; i < trek_shape_numel(shape); i++)
        values[i] = (double)((i * 7 + 1) % c);
    return trek_var_from(test_values(values, shape, dtype));
}

static trek_var *constant(const double *values, int64_t n, trek_dtype dtype)
{
    return trek_var_from(test_values(values, trek_dims(n), dtype));
}

/* --- the cases ---------------------------------------------------------------------- */

typedef trek_var *(*case_fn)(trek_var **x);

#define CASE(name, expression)                                                 \
    static trek_var *case_##name(trek_var **x)                                 \
    {                                                                          \
        return expression;                                                     \
    }
CASE(norm2, trek_norm(x[0], 2, trek_dims(1), false))
CASE(norm3, trek_norm(x[0], 3, trek_dims(0), false))
CASE(norm_inf, trek_norm(x[0], INFINITY, trek_dims(1), false))
CASE(conv2d_strided, trek_conv2d(x[0], x[1], x[2],
                                 &(trek_conv_opts){ .stride = { 2, 1 }, .padding = { 1, 2 }, .dilation = { 2, 1 } }))
CASE(conv2d_groups, trek_conv2d(x[0], x[1], NULL, &(trek_conv_opts){ .groups = 2 }))
CASE(conv_transpose2d_groups,
     trek_conv_transpose2d(x[0], x[1], x[2],
                           &(trek_conv_transpose_opts){ .stride = { 3, 2 }, .padding = { 1, TREK_ZERO }, .dilation = { 2, 1 },
                                                        .output_padding = { 2, 1 }, .groups = 2 }))
CASE(max_pool2d_ceil, trek_max_pool2d(x[0], &(trek_pool_opts){ .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 },
                                                               .ceil_mode = true }))
CASE(max_pool2d_dilated, trek_max_pool2d(x[0], &(trek_pool_opts){ .kernel = { 2 }, .stride = { 1 }, .dilation = { 2 } }))
CASE(avg_pool2d_exclude, trek_avg_pool2d(x[0],
                                         &(trek_pool_opts){ .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 },
                                                            .ceil_mode = true,
                                                            .exclude_padding = true }))
CASE(embedding_padding, trek_embedding(classes(trek_dims(2, 4), 5, TREK_I32), x[0], 1))
CASE(cross_entropy_probabilities, trek_cross_entropy(x[0], trek_softmax(trek_var_detach(x[1]), 1)))
CASE(nll_loss, trek_nll_loss(trek_log_softmax(x[0], 1), classes(trek_dims(6), 5, TREK_I64)))
CASE(mse_loss, trek_mse_loss(x[0], x[1]))
CASE(l1_loss, trek_l1_loss(x[0], x[1]))
CASE(smooth_l1_loss, trek_smooth_l1_loss(x[0], x[1], 0.5))
CASE(bce_with_logits, trek_bce_with_logits(x[0], trek_sigmoid(x[1])))
CASE(kl_div, trek_kl_div(trek_log_softmax(x[0], 1), trek_softmax(x[1], 1)))

/* -1 and 1 in turns of the classes. */
static trek_var *signs(trek_shape shape)
{
    return trek_sub_scalar(trek_mul_scalar(trek_cast(classes(shape, 2, TREK_I64), TREK_F64), 2), 1);
}
static trek_var *zeros_and_ones(trek_var *like, trek_shape shape)
{
    return trek_cast(classes(shape, 2, TREK_I64), trek_var_dtype(like));
}

#define ROWS trek_dims(3, 7)
#define SUM TREK_REDUCTION_SUM
#define NONE TREK_REDUCTION_NONE
CASE(mse_loss_weighted, trek_mse_loss_with(x[0], x[1], &(trek_loss_opts){ .weight = trek_exp(x[2]) }))
CASE(huber_loss, trek_huber_loss(x[0], x[1], 0.7, NULL))
CASE(huber_loss_weighted, trek_huber_loss(x[0], x[1], 1.5, &(trek_loss_opts){ .weight = trek_exp(x[2]) }))
CASE(bce, trek_bce(trek_sigmoid(x[0]), trek_sigmoid(x[1]), NULL))
CASE(bce_weighted, trek_bce(trek_sigmoid(x[0]), trek_sigmoid(x[1]),
                            &(trek_loss_opts){ .weight = trek_exp(trek_var_detach(x[2])) }))
CASE(bce_with_logits_positives,
     trek_bce_with_logits_with(x[0], zeros_and_ones(x[0], ROWS),
                               &(trek_bce_opts){ .weight = trek_exp(trek_var_detach(x[2])),
                                                 .pos_weight = trek_exp(trek_var_detach(x[1])) }))
CASE(focal_loss, trek_focal_loss(x[0], zeros_and_ones(x[0], ROWS), NULL))
CASE(focal_loss_sum, trek_focal_loss(x[0], trek_sigmoid(x[1]), &(trek_focal_opts){ .alpha = -1, .gamma = 1.5, .reduction = SUM }))
CASE(soft_margin_loss, trek_soft_margin_loss(x[0], trek_cast(signs(ROWS), trek_var_dtype(x[0])), NULL))
CASE(poisson_nll_loss, trek_poisson_nll_loss(x[0], trek_exp(x[1]), &(trek_poisson_nll_opts){ .full = true }))
CASE(poisson_nll_loss_rates, trek_poisson_nll_loss(trek_exp(x[0]), trek_exp(x[1]),
                                                   &(trek_poisson_nll_opts){ .rates = true, .eps = 0.1, .reduction = SUM }))
CASE(gaussian_nll_loss, trek_gaussian_nll_loss(x[0], x[1], trek_exp(x[2]), &(trek_gaussian_nll_opts){ .full = true }))
CASE(gaussian_nll_loss_rows,
     trek_gaussian_nll_loss(x[0], x[1], trek_exp(x[2]), &(trek_gaussian_nll_opts){ .eps = 0.8, .reduction = NONE }))
CASE(kl_div_logs, trek_kl_div_with(trek_log_softmax(x[0], 1), trek_log_softmax(x[1], 1),
                                   &(trek_kl_div_opts){ .log_target = true, .per_element = true }))
CASE(nll_loss_none, trek_nll_loss_with(trek_log_softmax(x[0], 1), classes(trek_dims(2, 3), 4, TREK_I64),
                                       &(trek_cross_entropy_opts){ .reduction = NONE }))
CASE(cosine_similarity, trek_cosine_similarity(x[0], x[1], 1, 1e-8))
CASE(cosine_similarity_short, trek_cosine_similarity(x[0], x[1], 0, 2.5))
CASE(pairwise_distance, trek_pairwise_distance(x[0], x[1], 3, 1e-6, true))
CASE(cosine_embedding_loss, trek_cosine_embedding_loss(x[0], x[1], signs(trek_dims(3)), &(trek_margin_opts){ .margin = 0.1 }))
CASE(margin_ranking_loss, trek_margin_ranking_loss(x[0], x[1], trek_cast(signs(ROWS), trek_var_dtype(x[0])),
                                                   &(trek_margin_opts){ .margin = 0.3 }))
CASE(hinge_embedding_loss, trek_hinge_embedding_loss(x[0], trek_cast(signs(ROWS), trek_var_dtype(x[0])),
                                                     &(trek_margin_opts){ .margin = 0.8, .reduction = NONE }))
CASE(triplet_margin_loss, trek_triplet_margin_loss(x[0], x[1], x[2], NULL))
CASE(triplet_margin_loss_swap, trek_triplet_margin_loss(x[0], x[1], x[2], &(trek_margin_opts){ .margin = 2, .p = 1, .eps = 1e-4,
                                                                                               .swap = true, .reduction = SUM }))
CASE(multi_margin_loss, trek_multi_margin_loss(x[0], classes(trek_dims(6), 5, TREK_I64), NULL))
CASE(multi_margin_loss_weighted,
     trek_multi_margin_loss(x[0], classes(trek_dims(6), 5, TREK_U8),
                            &(trek_margin_opts){ .p = 2, .margin = 0.5, .weight = trek_exp(trek_var_detach(x[1])),
                                                 .reduction = NONE }))
CASE(multilabel_soft_margin_loss,
     trek_multilabel_soft_margin_loss(x[0], zeros_and_ones(x[0], ROWS), &(trek_loss_opts){ .weight = trek_exp(x[1]) }))
CASE(info_nce, trek_info_nce(x[0], x[1], 0.2, TREK_REDUCTION_MEAN))
#undef ROWS
#undef SUM
#undef NONE

static trek_var *case_cross_entropy_options(trek_var **x)
{
    trek_cross_entropy_opts opts = { .weight = constant((double[]){ 0.5, 1, 2, 0.25, 1.5 }, 5, trek_var_dtype(x[0])),
                                     .ignore_index = 1, .label_smoothing = 0.1 };
    return trek_cross_entropy_with(x[0], classes(trek_dims(6), 5, TREK_I64), &opts);
}

typedef struct vector_case {
    const char *name;
    case_fn fn;
    double scale;
} vector_case;

#define ENTRY(name, scale) { #name, case_##name, scale }
static const vector_case cases[] = {
    ENTRY(norm2, 2), ENTRY(norm3, 2), ENTRY(norm_inf, 2), ENTRY(conv2d_strided, 1), ENTRY(conv2d_groups, 1),
    ENTRY(conv_transpose2d_groups, 1), ENTRY(max_pool2d_ceil, 2), ENTRY(max_pool2d_dilated, 2), ENTRY(avg_pool2d_exclude, 2),
    ENTRY(embedding_padding, 1), ENTRY(cross_entropy_options, 2), ENTRY(cross_entropy_probabilities, 2), ENTRY(nll_loss, 2),
    ENTRY(mse_loss, 2), ENTRY(l1_loss, 2), ENTRY(smooth_l1_loss, 2), ENTRY(bce_with_logits, 2), ENTRY(kl_div, 2),
    ENTRY(mse_loss_weighted, 2), ENTRY(huber_loss, 2), ENTRY(huber_loss_weighted, 2), ENTRY(bce, 2), ENTRY(bce_weighted, 2),
    ENTRY(bce_with_logits_positives, 2), ENTRY(focal_loss, 2), ENTRY(focal_loss_sum, 2), ENTRY(soft_margin_loss, 2),
    ENTRY(poisson_nll_loss, 2), ENTRY(poisson_nll_loss_rates, 2), ENTRY(gaussian_nll_loss, 2), ENTRY(gaussian_nll_loss_rows, 2),
    ENTRY(kl_div_logs, 2), ENTRY(nll_loss_none, 2), ENTRY(cosine_similarity, 2), ENTRY(cosine_similarity_short, 2),
    ENTRY(pairwise_distance, 2), ENTRY(cosine_embedding_loss, 2), ENTRY(margin_ranking_loss, 2), ENTRY(hinge_embedding_loss, 2),
    ENTRY(triplet_margin_loss, 2), ENTRY(triplet_margin_loss_swap, 2), ENTRY(multi_margin_loss, 2),
    ENTRY(multi_margin_loss_weighted, 2), ENTRY(multilabel_soft_margin_loss, 2), ENTRY(info_nce, 2),
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void run_in(const vector_case *c, trek_dtype dtype, double tolerance)
{
    static const char *const grads[] = { "g0", "g1", "g2" };
    trek_scope scope = trek_scope_begin();
    trek_var *x[3] = { NULL };
    int n = 0;
    for (int k = 0; k < n_entries; k++) /* the gradients' shapes are the inputs' */
        if (!strcmp(entries[k].name, c->name) && entries[k].what[0] == 'g' && n < 3) {
            x[n] = input((uint32_t)n + 1, entries[k].shape, c->scale, dtype, true);
            n++;
        }
    assert_true(n > 0);
    trek_var *y = c->fn(x);
    compare(c->name, "y", y, tolerance);
    trek_var *seed = input(50, trek_var_shape(y), 1, dtype, false);
    if (trek_backward_with(y, seed, NULL) != TREK_OK)
        fail_msg("%s: %s", c->name, trek_error());
    for (int k = 0; k < n; k++) {
        trek_var *grad = trek_var_grad(x[k]);
        if (grad)
            compare(c->name, grads[k], grad, tolerance);
        for (int64_t i = 0; !grad && i < trek_var_numel(x[k]); i++)
            assert_true(find(c->name, grads[k])->v[i] == 0);
    }
    assert_int_equal(trek_scope_end(scope), TREK_OK);
}

static void run_case(void **state)
{
    trek_error_clear();
    for (int way = 0; way < ways(); way++) {
        way_use(way);
        printf("%s\n", way_name(way)); /* of which one fails the last */
        run_in(*state, TREK_F64, 1e-8);
        run_in(*state, TREK_F32, 1e-5);
        way_use(-1);
    }
}

int main(void)
{
    static struct CMUnitTest tests[CASES];
    for (int k = 0; k < CASES; k++)
        tests[k] = (struct CMUnitTest){ .name = cases[k].name, .test_func = run_case, .initial_state = (void *)&cases[k] };
    return _cmocka_run_group_tests("vectors", tests, CASES, load, unload);
}
