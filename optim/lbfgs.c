/* SPDX-License-Identifier: Apache-2.0 */
/* L-BFGS over a single vector of all parameters. */
#include <math.h>

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "nn/params.h"
#include "optim/lbfgs_internal.h"
#include "tensor/copies.h"
#include "tensor/devices.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"
#include "tensor/scope.h"
#include "tensor/status_internal.h"

/* --- made and freed ----------------------------------------------------------------- */

static trek_status take_opts(trek_lbfgs_opts *o)
{
    o->lr = trek_option(o->lr, 1);
    o->tolerance_grad = trek_option(o->tolerance_grad, 1e-7);
    o->tolerance_change = trek_option(o->tolerance_change, 1e-9);
    o->max_iter = o->max_iter ? o->max_iter : 20;
    o->max_eval = o->max_eval ? o->max_eval : o->max_iter * 5 / 4;
    o->history_size = o->history_size ? o->history_size : 100;
    if (!(isfinite(o->lr) && o->lr >= 0))
        return trek_fail(TREK_ERR_ARGUMENT, "lbfgs_new: .lr: %g; must be finite and at least 0", o->lr);
    if (o->max_iter < 1 || o->max_eval < 1 || o->history_size < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "lbfgs_new: .max_iter: %d, .max_eval: %d, .history_size: %d; must be at least 1",
                         o->max_iter, o->max_eval, o->history_size);
    if (!(o->tolerance_grad >= 0) || !(o->tolerance_change >= 0))
        return trek_fail(TREK_ERR_ARGUMENT, "lbfgs_new: .tolerance_grad: %g, .tolerance_change: %g; must be at least 0",
                         o->tolerance_grad, o->tolerance_change);
    return TREK_OK;
}

static trek_status take_params(trek_lbfgs *l, const trek_params *params)
{
    l->params = trek_params_new();
    l->dtype = TREK_F32;
    trek_status status = l->params ? TREK_OK : trek_error_status();
    for (int k = 0; k < trek_params_count(params) && status == TREK_OK; k++) {
        trek_var *var = trek_params_var(params, k);
        trek_dtype dtype = trek_var_dtype(var);
        if (dtype != TREK_F32 && dtype != TREK_F64)
            return trek_fail(TREK_ERR_DTYPE, "lbfgs_new: parameter '%s': dtype %s; must be f32 or f64",
                             trek_params_name(params, k), trek_dtype_name(dtype));
        if (k > 0 && !trek_device_equal(trek_var_device(var), l->device))
            return trek_fail(TREK_ERR_DEVICE,
                             "lbfgs_new: parameter '%s': it is on another device than the first; all must be on one",
                             trek_params_name(params, k));
        l->device = trek_var_device(var);
        l->dtype = dtype == TREK_F64 ? TREK_F64 : l->dtype;
        l->total += trek_var_numel(var);
        status = trek_params_add(l->params, trek_params_name(params, k), var);
    }
    return status;
}

trek_lbfgs *trek_lbfgs_new(const trek_params *params, const trek_lbfgs_opts *opts)
{
    if (!params || trek_params_count(params) == 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "lbfgs_new: params: the list is empty; must have at least one");
    trek_lbfgs *l = trek_calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->opts = opts ? *opts : (trek_lbfgs_opts){ 0 };
    l->h_diag = 1;
    trek_status status = take_opts(&l->opts);
    if (status == TREK_OK)
        status = take_params(l, params);
    if (status == TREK_OK) {
        size_t n = (size_t)l->opts.history_size;
        l->dirs = trek_calloc(n, sizeof *l->dirs);
        l->steps = trek_calloc(n, sizeof *l->steps);
        l->ro = trek_calloc(n, sizeof *l->ro);
        l->al = trek_calloc(n, sizeof *l->al);
        status = l->dirs && l->steps && l->ro && l->al ? TREK_OK : TREK_ERR_MEMORY;
    }
    if (status != TREK_OK)
        trek_lbfgs_free(&l);
    return l;
}

void trek_lbfgs_forget(trek_lbfgs *l)
{
    for (int k = 0; k < l->n_old; k++) {
        trek_tensor_release(l->dirs[k]);
        trek_tensor_release(l->steps[k]);
    }
    l->n_old = 0;
    trek_tensor_release(l->d);
    trek_tensor_release(l->prev_grad);
    l->d = l->prev_grad = NULL;
}

void trek_lbfgs_free(trek_lbfgs **address)
{
    trek_lbfgs *l = address ? *address : NULL;
    if (!l)
        return;
    *address = NULL;
    trek_lbfgs_forget(l);
    trek_params_free(&l->params);
    trek_free(l->dirs);
    trek_free(l->steps);
    trek_free(l->ro);
    trek_free(l->al);
    trek_free(l);
}

void trek_lbfgs_zero_grad(trek_lbfgs *l)
{
    for (int k = 0; l && k < trek_params_count(l->params); k++)
        trek_var_zero_grad(trek_params_var(l->params, k));
}

trek_status trek_lbfgs_set_lr(trek_lbfgs *l, double lr)
{
    if (!l)
        return trek_fail_missing("lbfgs_set_lr", "lbfgs");
    lr = lr == TREK_ZERO ? 0 : lr;
    if (!(isfinite(lr) && lr >= 0))
        return trek_fail(TREK_ERR_ARGUMENT, "lbfgs_set_lr: lr: %g; must be finite and at least 0", lr);
    l->opts.lr = lr;
    return TREK_OK;
}

/* --- vectors -------------------------------------------------------------------------- */

static trek_var *var_of(const trek_tensor *a) { return a ? trek_var_from(trek_tensor_retain((trek_tensor *)a)) : NULL; }

/* Returns the value, kept beyond the scope. */
static trek_tensor *kept(trek_var *var, trek_scope scope)
{
    trek_tensor *made = var ? trek_tensor_retain(trek_var_data(var)) : NULL;
    trek_no_grad_end();
    trek_scope_end(scope);
    return made;
}

static trek_scope begin(void)
{
    trek_no_grad_begin();
    return trek_scope_begin();
}

static double number_of(trek_var *var, trek_scope scope)
{
    double value = var ? trek_var_item(var) : NAN;
    trek_no_grad_end();
    trek_scope_end(scope);
    return value;
}

static double dot(const trek_tensor *a, const trek_tensor *b)
{
    trek_scope scope = begin();
    trek_var *x = var_of(a), *y = var_of(b);
    return number_of(x && y ? trek_sum(trek_mul(x, y), trek_dims_all(), false) : NULL, scope);
}

static double largest(const trek_tensor *a)
{
    trek_scope scope = begin();
    trek_var *x = var_of(a);
    return number_of(x ? trek_max(trek_abs(x), trek_dims_all(), false) : NULL, scope);
}

static double sum_of_sizes(const trek_tensor *a)
{
    trek_scope scope = begin();
    trek_var *x = var_of(a);
    return number_of(x ? trek_sum(trek_abs(x), trek_dims_all(), false) : NULL, scope);
}

/* Returns p a + q b, or p a if b is NULL. */
static trek_tensor *combined(double p, const trek_tensor *a, double q, const trek_tensor *b)
{
    trek_scope scope = begin();
    trek_var *x = var_of(a), *y = var_of(b);
    x = x && p != 1 ? trek_mul_scalar(x, p) : x;
    return kept(x && y ? trek_add(x, trek_mul_scalar(y, q)) : b ? NULL : x, scope);
}

static void replace(trek_tensor **at, trek_tensor *by)
{
    trek_tensor_release(*at);
    *at = by;
}

typedef trek_var *(*piece_fn)(trek_var *param);

static trek_var *value_of(trek_var *param) { return trek_var_detach(param); }

static trek_var *grad_of(trek_var *param)
{
    trek_var *grad = trek_var_grad(param);
    return grad ? trek_var_detach(grad)
                : trek_var_from(trek_tensor_zeros(trek_var_shape(param), trek_var_dtype(param), trek_var_device(param)));
}

/* Returns one vector of all parameters, or of their gradients. */
static trek_tensor *gather(const trek_lbfgs *l, piece_fn piece, double factor)
{
    int n = trek_params_count(l->params);
    trek_scope scope = begin();
    trek_var **pieces = trek_calloc((size_t)n, sizeof *pieces), *all = NULL;
    trek_status status = pieces ? trek_error_status() : TREK_ERR_MEMORY;
    for (int k = 0; k < n && status == TREK_OK; k++) {
        trek_var *own = piece(trek_params_var(l->params, k));
        int64_t count = trek_var_numel(trek_params_var(l->params, k));
        pieces[k] = own ? trek_cast(trek_reshape(own, trek_shape_make(&count, 1)), l->dtype) : NULL;
        status = pieces[k] ? TREK_OK : trek_error_status();
    }
    if (status == TREK_OK)
        all = trek_mul_scalar(trek_cat(pieces, n, 0), factor); /* a copy, even for a single parameter */
    trek_free(pieces);
    return kept(all, scope);
}

/* Writes x + t d into the parameters. */
static trek_status spread(const trek_lbfgs *l, const trek_tensor *x, double t, const trek_tensor *d)
{
    trek_tensor *sum = combined(1, x, t, d);
    trek_scope scope = begin();
    trek_var *all = var_of(sum);
    trek_status status = all ? TREK_OK : trek_error_status();
    int64_t at = 0;
    for (int k = 0; k < trek_params_count(l->params) && status == TREK_OK; k++) {
        trek_var *param = trek_params_var(l->params, k);
        trek_var *part = trek_reshape(trek_narrow(all, 0, at, trek_var_numel(param)), trek_var_shape(param));
        status = part ? trek_tensor_copy_from(trek_var_data(param), trek_var_data(part)) : trek_error_status();
        at += trek_var_numel(param);
    }
    trek_tensor_release(kept(all, scope));
    trek_tensor_release(sum);
    return status;
}

/* --- a step ----------------------------------------------------------------------------- */

static double evaluate(trek_lbfgs *l, trek_closure_fn closure, void *arg, trek_tensor **grad)
{
    double loss = NAN, sign = l->opts.maximize ? -1 : 1;
    l->evaluations++;
    trek_scope scope = trek_scope_begin();
    trek_status status = trek_error_status() == TREK_OK ? closure(arg, &loss) : trek_error_status();
    if (status != TREK_OK && trek_error_status() == TREK_OK)
        trek_fail(status, "lbfgs_step: closure: it failed");
    trek_scope_end(scope);
    *grad = trek_error_status() == TREK_OK ? gather(l, grad_of, sign) : NULL;
    return sign * loss;
}

static trek_lbfgs_point evaluate_on(trek_lbfgs_line *line, double t)
{
    trek_lbfgs_point p = { .t = t };
    line->evaluations++;
    if (spread(line->lbfgs, line->x, t, line->d) == TREK_OK)
        p.loss = evaluate(line->lbfgs, line->closure, line->arg, &p.grad);
    p.slope = dot(p.grad, line->d);
    return p;
}

/* Adds a pair to the history and drops the oldest if it is full. */
static void remember(trek_lbfgs *l, const trek_tensor *grad)
{
    trek_tensor *y = combined(1, grad, -1, l->prev_grad), *s = combined(l->t, l->d, 0, NULL);
    double ys = dot(y, s);
    if (!(ys > 1e-10)) {
        trek_tensor_release(y);
        trek_tensor_release(s);
        return;
    }
    if (l->n_old == l->opts.history_size) {
        trek_tensor_release(l->dirs[0]);
        trek_tensor_release(l->steps[0]);
        for (int k = 1; k < l->n_old; k++) {
            l->dirs[k - 1] = l->dirs[k];
            l->steps[k - 1] = l->steps[k];
            l->ro[k - 1] = l->ro[k];
        }
        l->n_old--;
    }
    l->dirs[l->n_old] = y;
    l->steps[l->n_old] = s;
    l->ro[l->n_old++] = 1 / ys;
    l->h_diag = ys / dot(y, y);
}

/* Returns the approximate inverse Hessian, from the pairs, times the negative gradient. */
static trek_tensor *direction(trek_lbfgs *l, const trek_tensor *grad)
{
    trek_tensor *q = combined(-1, grad, 0, NULL);
    for (int k = l->n_old - 1; k >= 0; k--) {
        l->al[k] = dot(l->steps[k], q) * l->ro[k];
        replace(&q, combined(1, q, -l->al[k], l->dirs[k]));
    }
    if (l->n_old > 0 || l->h_diag != 1)
        replace(&q, combined(l->h_diag, q, 0, NULL));
    for (int k = 0; k < l->n_old; k++) {
        double be = dot(l->dirs[k], q) * l->ro[k];
        replace(&q, combined(1, q, l->al[k] - be, l->steps[k]));
    }
    return q;
}

typedef struct progress {
    trek_closure_fn closure;
    void *arg;
    double loss;
    trek_tensor *grad;
    int iteration, evaluations;
} progress;

/* Moves along d: by a line search, or by the step length t. After the last iteration the loss is not needed. */
static void go(trek_lbfgs *l, progress *p, double slope)
{
    trek_lbfgs_line line = { evaluate_on, l, p->closure, p->arg, gather(l, value_of, 1), l->d, 0, 0 };
    if (l->opts.strong_wolfe) {
        line.largest = largest(l->d);
        trek_lbfgs_point start = { 0, p->loss, slope, p->grad };
        trek_lbfgs_point end = trek_lbfgs_search(&line, start, l->t, l->opts.max_eval - p->evaluations);
        l->t = end.t;
        p->loss = end.loss;
        replace(&p->grad, end.grad);
        spread(l, line.x, l->t, l->d);
    } else if (spread(l, line.x, l->t, l->d) == TREK_OK && p->iteration != l->opts.max_iter) {
        line.evaluations = 1;
        trek_tensor *grad;
        p->loss = evaluate(l, p->closure, p->arg, &grad);
        replace(&p->grad, grad);
    }
    p->evaluations += line.evaluations;
    trek_tensor_release(line.x);
}

/* Runs one iteration. Returns whether another one is worthwhile. */
static bool iterate(trek_lbfgs *l, progress *p)
{
    p->iteration++;
    bool first = l->iterations++ == 0;
    if (!first)
        remember(l, p->grad);
    replace(&l->d, direction(l, p->grad));
    replace(&l->prev_grad, trek_tensor_retain(p->grad));
    l->prev_loss = p->loss;
    l->t = first ? fmin(1, 1 / sum_of_sizes(p->grad)) * l->opts.lr : l->opts.lr;
    double slope = dot(p->grad, l->d);
    if (trek_error_status() != TREK_OK || slope > -l->opts.tolerance_change)
        return false;
    go(l, p, slope);
    if (trek_error_status() != TREK_OK || p->iteration == l->opts.max_iter || p->evaluations >= l->opts.max_eval)
        return false;
    return !(largest(p->grad) <= l->opts.tolerance_grad) &&
           !(largest(l->d) * fabs(l->t) <= l->opts.tolerance_change) &&
           !(fabs(p->loss - l->prev_loss) < l->opts.tolerance_change);
}

trek_status trek_lbfgs_step(trek_lbfgs *l, trek_closure_fn closure, void *arg, double *loss)
{
    if (!l || !closure)
        return trek_fail_missing("lbfgs_step", l ? "closure" : "lbfgs");
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    progress p = { closure, arg, .evaluations = 1 };
    p.loss = evaluate(l, closure, arg, &p.grad);
    if (loss)
        *loss = l->opts.maximize ? -p.loss : p.loss;
    bool there = trek_error_status() != TREK_OK || l->total == 0 || largest(p.grad) <= l->opts.tolerance_grad;
    while (!there)
        there = !iterate(l, &p);
    trek_tensor_release(p.grad);
    return trek_error_status();
}
