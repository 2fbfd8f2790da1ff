/* SPDX-License-Identifier: Apache-2.0 */
/* The state of L-BFGS in a list of named tensors, for checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/params.h"
#include "nn/text.h"
#include "optim/lbfgs_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/memory_internal.h"

/* The elements of the tensor "numbers": the progress, and from S_RO on one for each pair of the history. */
enum { S_EVALUATIONS, S_ITERATIONS, S_T, S_H, S_LOSS, S_OLD, S_RO };
enum { NAME = 32 };
#define PARAMS_KEY "trek.lbfgs.parameters"

static void write_name(char *text, const char *name, int k) { snprintf(text, NAME, k < 0 ? "%s" : "%s.%d", name, k); }

/* Writes a line for each parameter, since the vectors contain them one after the other. */
static trek_status describe(const trek_lbfgs *l, trek_text *text)
{
    char shape[TREK_SHAPE_TEXT];
    for (int k = 0; k < trek_params_count(l->params); k++)
        trek_text_format(text, "%s %s\n", trek_params_name(l->params, k),
                         trek_shape_format(trek_var_shape(trek_params_var(l->params, k)), shape, sizeof shape));
    return text->failed ? trek_error_status() : TREK_OK;
}

/* --- saving ----------------------------------------------------------------------------- */

static trek_status add_numbers(trek_state *state, const char *name, const double *values, int64_t count)
{
    trek_tensor *tensor = trek_tensor_from_data(values, trek_shape_make(&count, 1), TREK_F64, trek_cpu(0));
    trek_status status = tensor ? trek_state_add(state, name, tensor) : trek_error_status();
    trek_tensor_release(tensor);
    return status;
}

static trek_status add_vector(trek_state *state, const char *name, int k, trek_tensor *tensor)
{
    char text[NAME];
    write_name(text, name, k);
    trek_tensor *here = trek_tensor_to(tensor, trek_cpu(0)), *copy = here ? trek_tensor_clone(here) : NULL;
    trek_status status = copy ? trek_state_add(state, text, copy) : trek_error_status();
    trek_tensor_release(here);
    trek_tensor_release(copy);
    return status;
}

static trek_status add_scalars(trek_state *state, const trek_lbfgs *l)
{
    double first[] = { (double)l->evaluations, (double)l->iterations, l->t, l->h_diag, l->prev_loss, l->n_old };
    double *numbers = trek_calloc((size_t)S_RO + (size_t)l->n_old, sizeof *numbers);
    trek_text params = { 0 };
    trek_status status = numbers ? describe(l, &params) : TREK_ERR_MEMORY;
    if (status == TREK_OK) {
        memcpy(numbers, first, sizeof first);
        for (int k = 0; k < l->n_old; k++)
            numbers[S_RO + k] = l->ro[k];
        status = trek_state_set_metadata(state, PARAMS_KEY, params.data);
    }
    if (status == TREK_OK)
        status = add_numbers(state, TREK_OPTIMIZER_RATES, &l->opts.lr, 1);
    if (status == TREK_OK)
        status = add_numbers(state, "numbers", numbers, S_RO + l->n_old);
    trek_text_clear(&params);
    trek_free(numbers);
    return status;
}

trek_state *trek_lbfgs_state(trek_lbfgs *l)
{
    if (!l || trek_error_status() != TREK_OK)
        return l ? NULL : (trek_fail_missing("lbfgs_state", "lbfgs"), NULL);
    trek_state *state = trek_state_new();
    trek_status status = state ? add_scalars(state, l) : trek_error_status();
    if (status == TREK_OK && l->d)
        status = add_vector(state, "d", -1, l->d);
    if (status == TREK_OK && l->prev_grad)
        status = add_vector(state, "prev_grad", -1, l->prev_grad);
    for (int k = 0; k < l->n_old && status == TREK_OK; k++) {
        status = add_vector(state, "dirs", k, l->dirs[k]);
        if (status == TREK_OK)
            status = add_vector(state, "steps", k, l->steps[k]);
    }
    if (status != TREK_OK)
        trek_state_free(&state);
    return state;
}

/* --- loading: all of it next to the old state, which it then replaces --------------------- */

typedef struct loading {
    const trek_state *state;
    trek_lbfgs now;          /* the new state; its arrays are its own */
    double *numbers;
    int64_t count;
    int used;                /* tensors of the state */
} loading;

static trek_status read_vector(loading *x, const char *name, int k, trek_tensor **to)
{
    char text[NAME], shape[TREK_SHAPE_TEXT];
    write_name(text, name, k);
    trek_tensor *found = trek_state_find(x->state, text);
    if (!found)
        return trek_error_status() != TREK_OK ? trek_error_status()
                                              : trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: '%s' is missing", text);
    if (trek_tensor_shape(found).ndim != 1 || trek_tensor_numel(found) != x->now.total ||
        trek_tensor_dtype(found) != x->now.dtype)
        return trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: '%s' is %s %s; must be [%lld] %s", text,
                         trek_shape_format(trek_tensor_shape(found), shape, sizeof shape),
                         trek_dtype_name(trek_tensor_dtype(found)),
                         (long long)x->now.total, trek_dtype_name(x->now.dtype));
    trek_tensor *here = trek_tensor_to(found, x->now.device);
    *to = here ? trek_tensor_clone(here) : NULL;
    trek_tensor_release(here);
    x->used++;
    return *to ? TREK_OK : trek_error_status();
}

static bool is_count(double x) { return x >= 0 && x < 9e15 && x == floor(x); }

static trek_status read_numbers(loading *x)
{
    const trek_tensor *tensor = trek_state_find(x->state, "numbers");
    trek_lbfgs *now = &x->now;
    x->count = tensor ? trek_tensor_numel(tensor) : 0;
    if (!tensor || x->count < S_RO || trek_tensor_dtype(tensor) != TREK_F64)
        return trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: \"numbers\" is missing: it is not the state of an L-BFGS");
    if (!(x->numbers = trek_calloc((size_t)x->count, sizeof *x->numbers)))
        return TREK_ERR_MEMORY;
    trek_status status = trek_tensor_to_host(tensor, TREK_F64, x->numbers, (size_t)x->count * sizeof *x->numbers);
    const double *n = x->numbers;
    if (status != TREK_OK)
        return status;
    if (!is_count(n[S_EVALUATIONS]) || !is_count(n[S_ITERATIONS]) || n[S_OLD] != (double)(x->count - S_RO))
        return trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: \"numbers\" is not of an L-BFGS");
    if (n[S_OLD] > now->opts.history_size)
        return trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: a history of %g pairs; .history_size is %d", n[S_OLD],
                         now->opts.history_size);
    if (n[S_OLD] > 0 && n[S_ITERATIONS] == 0)
        return trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: a history, but no iteration");
    now->evaluations = (int64_t)n[S_EVALUATIONS];
    now->iterations = (int64_t)n[S_ITERATIONS];
    now->t = n[S_T];
    now->h_diag = n[S_H];
    now->prev_loss = n[S_LOSS];
    x->used++;
    return TREK_OK;
}

static trek_status read_rate(loading *x)
{
    trek_tensor *tensor = trek_state_find(x->state, TREK_OPTIMIZER_RATES);
    double *rates = NULL;
    int n = 0;
    if (!tensor)
        return trek_fail(TREK_ERR_FORMAT,
                         "lbfgs_load: state: \"" TREK_OPTIMIZER_RATES "\" is missing: it is not the state of an L-BFGS");
    trek_status status = trek_optimizer_read_rates(tensor, "lbfgs_load", &rates, &n);
    if (status == TREK_OK && n != 1)
        status = trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: %d learning rates; an L-BFGS has one", n);
    if (status == TREK_OK)
        x->now.opts.lr = rates[0];
    trek_free(rates);
    x->used++;
    return status;
}

static trek_status check_params(const loading *x)
{
    trek_text own = { 0 };
    const char *theirs = trek_state_metadata(x->state, PARAMS_KEY);
    trek_status status = describe(&x->now, &own);
    if (status == TREK_OK && !theirs)
        status = trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: the names of its parameters are missing");
    if (status == TREK_OK && strcmp(own.data, theirs) != 0) {
        const char *a = own.data, *b = theirs;
        for (; strcspn(a, "\n") == strcspn(b, "\n") && strncmp(a, b, strcspn(a, "\n")) == 0 && *a; a += strcspn(a, "\n") + 1)
            b += strcspn(b, "\n") + 1;
        status = trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: it is of other parameters: '%.*s' there, '%.*s' here",
                           (int)strcspn(b, "\n"), b, (int)strcspn(a, "\n"), a);
    }
    trek_text_clear(&own);
    return status;
}

static trek_status read_history(loading *x)
{
    trek_lbfgs *now = &x->now;
    int n = (int)(x->count - S_RO);
    trek_status status = TREK_OK;
    if (now->iterations > 0 && (status = read_vector(x, "d", -1, &now->d)) == TREK_OK)
        status = read_vector(x, "prev_grad", -1, &now->prev_grad);
    for (; now->n_old < n && status == TREK_OK; now->n_old++) {
        status = read_vector(x, "dirs", now->n_old, &now->dirs[now->n_old]);
        if (status == TREK_OK)
            status = read_vector(x, "steps", now->n_old, &now->steps[now->n_old]);
        now->ro[now->n_old] = x->numbers[S_RO + now->n_old];
    }
    if (status == TREK_OK && x->used != trek_state_count(x->state))
        status =
            trek_fail(TREK_ERR_FORMAT, "lbfgs_load: state: %d tensors; this L-BFGS has %d", trek_state_count(x->state), x->used);
    return status;
}

static trek_status make_arrays(trek_lbfgs *now)
{
    size_t n = (size_t)now->opts.history_size;
    now->dirs = trek_calloc(n, sizeof *now->dirs);
    now->steps = trek_calloc(n, sizeof *now->steps);
    now->ro = trek_calloc(n, sizeof *now->ro);
    return now->dirs && now->steps && now->ro ? TREK_OK : TREK_ERR_MEMORY;
}

trek_status trek_lbfgs_load(trek_lbfgs *l, const trek_state *state)
{
    if (!l || !state)
        return trek_fail_missing("lbfgs_load", l ? "state" : "lbfgs");
    trek_status status = trek_error_status();
    loading x = { .state = state, .now = *l };
    x.now.d = x.now.prev_grad = NULL;
    x.now.dirs = x.now.steps = NULL;
    x.now.ro = NULL;
    x.now.n_old = 0;
    if (status == TREK_OK)
        status = make_arrays(&x.now);
    if (status == TREK_OK)
        status = read_rate(&x);
    if (status == TREK_OK)
        status = read_numbers(&x);
    if (status == TREK_OK)
        status = check_params(&x);
    if (status == TREK_OK)
        status = read_history(&x);
    if (status == TREK_OK) {
        trek_lbfgs before = *l;
        *l = x.now;
        x.now = before;
    }
    trek_lbfgs_forget(&x.now);
    trek_free(x.now.dirs);
    trek_free(x.now.steps);
    trek_free(x.now.ro);
    trek_free(x.numbers);
    return status;
}
