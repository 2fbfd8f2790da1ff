/* SPDX-License-Identifier: Apache-2.0 */
/* Connectionist temporal classification (Graves et al. 2006): forward and backward variables over the target with
 * blanks between its labels, as logarithms in f64. The gradient is that of the loss itself: minus the probability
 * that the path is at a class at a given time. Everything runs on the host. */
#include <math.h>

#include "autograd/losses_internal.h"
#include "tensor/option_internal.h"
#include "tensor/pages.h"
#include "tensor/pool.h"

typedef struct ctc {
    int64_t steps, rows, classes, blank;
    bool zero_infinity;
    int64_t *targets, *starts;        /* all labels; where each row's labels begin, and the end */
    int64_t *lengths, *places;        /* the length of each row; where its forward variables begin */
    double *alpha, *losses;           /* [time, state] of each row; -log likelihood */
} ctc;

/* What a pass over some rows reads and writes. */
typedef struct pass {
    const ctc *c;
    const trek_tensor *log_probs;     /* [T, N, C], f32 or f64, on the host */
    const double *seeds;              /* gradients of the rows' losses; NULL in the forward pass */
    char *grad;                       /* contiguous, zeroed */
    double *scratch;                  /* two lines of states for each row */
    int64_t line;                     /* the number of states of the longest target */
} pass;

static void free_ctc(void *data)
{
    ctc *c = data;
    trek_free(c->targets);
    trek_free(c->starts);
    trek_free(c->lengths);
    trek_free(c->places);
    trek_free(c->alpha);
    trek_free(c->losses);
    trek_free(c);
}

/* --- the recursions ------------------------------------------------------------------------------ */

/* Accepts -infinity, which most values here may be. NaN stays NaN. */
static double log_sum_of_two(double a, double b)
{
    double most = a > b ? a : b, least = a > b ? b : a;
    if (least == -INFINITY || most == INFINITY)
        return most;
    return most + log1p(exp(least - most));
}

static double log_sum(double a, double b, double c)
{
    if (c == -INFINITY)
        return log_sum_of_two(a, b);
    double most = a > b ? a : b, least = a > b ? b : a;
    if (c > most) {
        double other = c;
        c = most;
        most = other;
    }
    return most == INFINITY ? most : most + log1p(exp(least - most) + exp(c - most));
}

static int64_t states_of(const ctc *c, int64_t n) { return 2 * (c->starts[n + 1] - c->starts[n]) + 1; }

static int64_t class_of(const ctc *c, int64_t n, int64_t state)
{
    return state % 2 ? c->targets[c->starts[n] + state / 2] : c->blank;
}

/* Returns whether the path may enter a state from the one before the last, skipping a blank between different labels. */
static bool may_skip(const ctc *c, int64_t n, int64_t state)
{
    return state % 2 && state >= 3 && class_of(c, n, state) != class_of(c, n, state - 2);
}

static double log_prob(const pass *p, int64_t t, int64_t n, int64_t kind)
{
    const trek_tensor *x = p->log_probs;
    const char *at = x->data + (t * x->strides[0] + n * x->strides[1] + kind * x->strides[2]) * trek_item_size[x->dtype];
    return x->dtype == TREK_F64 ? *(const double *)at : (double)*(const float *)at;
}

static void forward_row(const pass *p, int64_t n)
{
    const ctc *c = p->c;
    int64_t states = states_of(c, n), steps = c->lengths[n];
    double *alpha = c->alpha + c->places[n];
    if (steps == 0) {
        c->losses[n] = states == 1 ? 0 : INFINITY;
        return;
    }
    for (int64_t s = 0; s < states; s++)
        alpha[s] = s < 2 ? log_prob(p, 0, n, class_of(c, n, s)) : -INFINITY;
    for (int64_t t = 1; t < steps; t++) {
        const double *last = alpha;
        alpha += states;
        for (int64_t s = 0; s < states; s++)
            alpha[s] = log_sum(last[s], s > 0 ? last[s - 1] : -INFINITY, may_skip(c, n, s) ? last[s - 2] : -INFINITY) +
                log_prob(p, t, n, class_of(c, n, s));
    }
    c->losses[n] = -log_sum(alpha[states - 1], states > 1 ? alpha[states - 2] : -INFINITY, -INFINITY);
}

static void forward_rows(void *arg, int64_t begin, int64_t end)
{
    for (int64_t n = begin; n < end; n++)
        forward_row(arg, n);
}

/* Subtracts `amount` from an element of the gradient. */
static void take(const pass *p, int64_t t, int64_t n, int64_t kind, double amount)
{
    int64_t at = (t * p->c->rows + n) * p->c->classes + kind;
    if (p->log_probs->dtype == TREK_F64)
        ((double *)p->grad)[at] -= amount;
    else
        ((float *)p->grad)[at] -= (float)amount;
}

static void backward_row(const pass *p, int64_t n)
{
    const ctc *c = p->c;
    int64_t states = states_of(c, n), steps = c->lengths[n];
    double loss = c->losses[n], *next = p->scratch + 2 * n * p->line, *here = next + p->line;
    if (loss == INFINITY) { /* there is no path: NaN, as in PyTorch */
        for (int64_t t = 0; t < steps && !c->zero_infinity; t++)
            for (int64_t kind = 0; kind < c->classes; kind++)
                take(p, t, n, kind, NAN);
        return;
    }
    for (int64_t t = steps - 1; t >= 0; t--) {
        for (int64_t s = 0; s < states; s++) { /* the probability of what comes after t */
            here[s] = t < steps - 1 ? log_sum(next[s], s + 1 < states ? next[s + 1] : -INFINITY,
                                              s + 2 < states && may_skip(c, n, s + 2) ? next[s + 2] : -INFINITY)
                : s + 2 >= states ? 0 : -INFINITY;
            take(p, t, n, class_of(c, n, s), p->seeds[n] * exp(c->alpha[c->places[n] + t * states + s] + here[s] + loss));
        }
        for (int64_t s = 0; s < states; s++)
            next[s] = here[s] + log_prob(p, t, n, class_of(c, n, s));
    }
}

static void backward_rows(void *arg, int64_t begin, int64_t end)
{
    for (int64_t n = begin; n < end; n++)
        backward_row(arg, n);
}

/* --- on the tape ----------------------------------------------------------------------------------- */

static trek_status ctc_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    ctc *c = trek_function_data(context);
    trek_parallel(c->rows, 1, forward_rows, &(pass){ .c = c, .log_probs = in[0]->data });
    trek_tensor *losses = trek_tensor_empty(trek_dims(c->rows), trek_var_dtype(in[0]), trek_var_device(in[0]));
    for (int64_t n = 0; losses && n < c->rows; n++) {
        double loss = c->zero_infinity && c->losses[n] == INFINITY ? 0 : c->losses[n];
        if (losses->dtype == TREK_F64)
            ((double *)losses->data)[n] = loss;
        else
            ((float *)losses->data)[n] = (float)loss;
    }
    out[0] = losses ? trek_var_from(losses) : NULL;
    return out[0] ? trek_save_for_backward(context, in, 1) : trek_error_status();
}

/* An op of its own, so that a second derivative is refused. PyTorch has none either. */
static trek_status gradient_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    const ctc *c = trek_function_data(context);
    pass p = { .c = c, .log_probs = in[1]->data, .line = 1 };
    for (int64_t n = 0; n < c->rows; n++)
        p.line = states_of(c, n) > p.line ? states_of(c, n) : p.line;
    trek_tensor *grad = trek_tensor_zeros(trek_var_shape(in[1]), trek_var_dtype(in[1]), trek_var_device(in[1]));
    double *seeds = trek_alloc(((size_t)c->rows + 1) * sizeof *seeds);
    p.scratch = trek_calloc((size_t)(2 * c->rows * p.line) + 1, sizeof *p.scratch);
    if (grad && seeds && p.scratch &&
        trek_tensor_to_host(in[0]->data, TREK_F64, seeds, (size_t)c->rows * sizeof *seeds) == TREK_OK) {
        p.seeds = seeds;
        p.grad = grad->data;
        trek_parallel(c->rows, 1, backward_rows, &p);
    }
    trek_free(seeds);
    trek_free(p.scratch);
    out[0] = grad ? trek_var_from(grad) : NULL;
    return trek_error_status();
}

static const trek_function gradient_function = { .name = "gradient of ctc_loss", .forward = gradient_forward };

static trek_status ctc_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads, int n_in)
{
    (void)n, (void)n_in;
    trek_var *in[2] = { grads[0], trek_saved(context, 0) };
    if (in[0] && in[1])
        input_grads[0] = trek_function_apply_one(&gradient_function, trek_function_data(context), in, 2);
    return trek_error_status();
}

static const trek_function ctc_function = { .name = "ctc_loss", .forward = ctc_forward, .backward = ctc_backward,
                                            .free = free_ctc };

/* --- the call ---------------------------------------------------------------------------------------- */

static const char name[] = "ctc_loss";

static bool integers(const char *what, const trek_var *x)
{
    trek_dtype dtype = trek_var_dtype(x);
    if (!trek_dtype_is_float(dtype) && dtype != TREK_BOOL)
        return true;
    return trek_fail(TREK_ERR_DTYPE, "%s: %s: dtype %s; must be an integer dtype", name, what, trek_dtype_name(dtype)), false;
}

/* Returns the integers of a variable in memory of their own, with room for one more, or NULL on failure. */
static int64_t *numbers_of(const char *what, const trek_var *x)
{
    size_t count = (size_t)trek_var_numel(x);
    int64_t *made = integers(what, x) ? trek_alloc((count + 1) * sizeof *made) : NULL;
    if (made && trek_tensor_to_host(x->data, TREK_I64, made, count * sizeof *made) == TREK_OK)
        return made;
    trek_free(made);
    return NULL;
}

/* Collects the labels of all rows one after the other, and where each row's begin. Returns false on failure. */
static bool take_targets(ctc *c, const trek_var *targets, const int64_t *lengths)
{
    bool rows = trek_var_ndim(targets) == 2;
    int64_t width = rows ? trek_var_size(targets, 1) : 0, total = 0;
    c->targets = numbers_of("targets", targets);
    c->starts = trek_alloc(((size_t)c->rows + 1) * sizeof *c->starts);
    if (!c->targets || !c->starts)
        return false;
    for (int64_t n = 0; n < c->rows; n++) {
        if (lengths[n] < 0 || (rows && lengths[n] > width) || (!rows && lengths[n] > trek_var_numel(targets) - total))
            return trek_fail(TREK_ERR_ARGUMENT, "%s: target_lengths: %lld in row %lld; must be 0 to the number of labels", name,
                             (long long)lengths[n], (long long)n),
                   false;
        c->starts[n] = total;
        for (int64_t k = 0; k < lengths[n]; k++) {
            int64_t label = c->targets[rows ? n * width + k : total + k];
            if (label < 0 || label >= c->classes || label == c->blank)
                return trek_fail(TREK_ERR_ARGUMENT,
                                 "%s: targets: label %lld in row %lld; classes are 0 to %lld, without the blank, %lld", name,
                                 (long long)label, (long long)n, (long long)c->classes - 1, (long long)c->blank),
                       false;
            c->targets[total + k] = label;
        }
        total += lengths[n];
    }
    c->starts[c->rows] = total;
    if (!rows && total != trek_var_numel(targets))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: targets: %lld labels; target_lengths add up to %lld", name,
                         (long long)trek_var_numel(targets), (long long)total),
               false;
    return true;
}

/* Checks the length of each row and allocates its variables. Returns false on failure. */
static bool take_lengths(ctc *c, const trek_var *lengths)
{
    int64_t total = 0;
    c->lengths = numbers_of("input lengths", lengths);
    c->places = trek_alloc(((size_t)c->rows + 1) * sizeof *c->places);
    c->losses = trek_alloc(((size_t)c->rows + 1) * sizeof *c->losses);
    if (!c->lengths || !c->places || !c->losses)
        return false;
    for (int64_t n = 0; n < c->rows; n++) {
        if (c->lengths[n] < 0 || c->lengths[n] > c->steps)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: input_lengths: %lld in row %lld; must be 0 to %lld, the number of steps",
                             name, (long long)c->lengths[n], (long long)n, (long long)c->steps),
                   false;
        c->places[n] = total;
        total += c->lengths[n] * states_of(c, n);
    }
    c->alpha = trek_calloc((size_t)total + 1, sizeof *c->alpha);
    return c->alpha != NULL;
}

static bool shapes_fit(const trek_var *log_probs, const trek_var *targets, const trek_var *inputs, const trek_var *lengths)
{
    int64_t rows = trek_var_ndim(log_probs) == 3 ? trek_var_size(log_probs, 1) : 1;
    int dims = trek_var_ndim(targets);
    bool fits = trek_var_ndim(log_probs) == 3 ? dims == 1 || (dims == 2 && trek_var_size(targets, 0) == rows)
                                               : trek_var_ndim(log_probs) == 2 && dims == 1;
    fits = fits && trek_var_numel(inputs) == rows && trek_var_numel(lengths) == rows && trek_var_ndim(inputs) <= 1 &&
        trek_var_ndim(lengths) <= 1;
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!fits)
        trek_fail(TREK_ERR_SHAPE,
                  "%s: inputs: %s and %s, with %lld input lengths and %lld target lengths; must be log probabilities [T, N, C], "
                  "targets [N, S] or of all rows together, and N lengths of each (or [T, C], [S] and one)",
                  name, trek_tensor_shape_text(log_probs->data, a), trek_tensor_shape_text(targets->data, b),
                  (long long)trek_var_numel(inputs), (long long)trek_var_numel(lengths));
    return fits;
}

/* Computes the losses of the rows on the host, from log_probs [T, N, C]. */
static trek_var *losses_of(trek_var *log_probs, trek_var *targets, trek_var *input_lengths, const int64_t *lengths,
                           const trek_ctc_opts *opts)
{
    log_probs = trek_tensor_is_kept(log_probs->data) ? trek_clone(log_probs) : log_probs;
    ctc *c = log_probs ? trek_calloc(1, sizeof *c) : NULL;
    if (!c)
        return NULL;
    *c = (ctc){ .steps = trek_var_size(log_probs, 0), .rows = trek_var_size(log_probs, 1),
                .classes = trek_var_size(log_probs, 2), .blank = trek_option_integer(opts->blank, 0),
                .zero_infinity = opts->zero_infinity };
    if (c->blank < 0 || c->blank >= c->classes)
        trek_fail(TREK_ERR_ARGUMENT, "%s: blank: %lld; must be one of %lld classes", name, (long long)c->blank,
                  (long long)c->classes);
    else if (take_targets(c, targets, lengths) && take_lengths(c, input_lengths))
        return trek_function_apply_one(&ctc_function, c, &log_probs, 1);
    free_ctc(c);
    return NULL;
}

/* Divides each loss by its target's length, but at least by 1. */
static trek_var *by_length(trek_var *losses, const int64_t *lengths)
{
    trek_tensor *divisors = losses ? trek_tensor_empty(trek_var_shape(losses), TREK_F64, trek_cpu(0)) : NULL;
    for (int64_t n = 0; divisors && n < divisors->numel; n++)
        ((double *)divisors->data)[n] = lengths[n] > 0 ? (double)lengths[n] : 1;
    return trek_div(losses, trek_cast(divisors ? trek_var_from(divisors) : NULL, trek_var_dtype(losses)));
}

trek_var *trek_ctc_loss(trek_var *log_probs, trek_var *targets, trek_var *input_lengths, trek_var *target_lengths,
                        const trek_ctc_opts *given)
{
    trek_ctc_opts opts = given ? *given : (trek_ctc_opts){ 0 };
    trek_dtype dtype;
    if (!log_probs || !targets || !input_lengths || !target_lengths)
        return trek_fail_missing(name, "input"), NULL;
    if (!trek_loss_reduction_known(name, opts.reduction) || !shapes_fit(log_probs, targets, input_lengths, target_lengths) ||
        !trek_loss_widen(name, &log_probs, 1, TREK_LOSS_TAKEN_FLOATS, &dtype))
        return NULL;
    trek_device device = trek_var_device(log_probs);
    bool batched = trek_var_ndim(log_probs) == 3;
    trek_var *x = batched ? log_probs : trek_unsqueeze(log_probs, 1);
    x = device.type == TREK_CPU ? x : trek_to(x, trek_cpu(0));
    int64_t *lengths = x ? numbers_of("target lengths", target_lengths) : NULL;
    trek_var *losses = lengths ? losses_of(x, targets, input_lengths, lengths, &opts) : NULL;
    if (losses && opts.reduction == TREK_REDUCTION_MEAN)
        losses = by_length(losses, lengths);
    trek_free(lengths);
    losses = losses && !batched ? trek_squeeze(losses, 0) : losses;
    losses = losses && device.type != TREK_CPU ? trek_to(losses, device) : losses;
    return losses ? trek_loss_reduced(losses, opts.reduction, dtype) : NULL;
}
