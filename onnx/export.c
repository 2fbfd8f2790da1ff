/* SPDX-License-Identifier: Apache-2.0 */
/* The export: runs of the forward, what is the same in all of them, and the nodes that the results need. */
#include "nn/module_internal.h"
#include "onnx/export.h"

#include <math.h>
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/graph_internal.h"
#include "nn/fp8_internal.h"
#include "nn/walk.h"
#include "onnx/onnx_internal.h"
#include "onnx/protobuf.h"

/* --- names and open dimensions --------------------------------------------------------------- */

static trek_status fail_symbol(const char *name, int64_t a, int64_t b)
{
    return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: .dims: dimensions named %s have sizes %lld and %lld; must be equal", name,
                     (long long)a, (long long)b);
}

/* Marks a dimension as open under a name. */
static trek_status open_dim(trek_onnx *x, trek_var *const *inputs, int k, int d, const char *name, int64_t other, int64_t *others)
{
    int s = 0;
    while (s < x->n_symbols && strcmp(x->symbols[s].name, name) != 0)
        s++;
    if (s == TREK_ONNX_SYMBOLS)
        return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: .dims: more than %d names of open dimensions; must be fewer",
                         TREK_ONNX_SYMBOLS);
    int64_t size = trek_var_size(inputs[k], d);
    if (size < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: input %d: 0 elements along dimension %d, which is open; must have some",
                         k, d);
    if (s == x->n_symbols) {
        x->symbols[x->n_symbols++] = (trek_onnx_symbol){ .name = name, .input = k, .dim = d, .sizes = { size } };
        others[s] = other;
    }
    if (x->symbols[s].sizes[0] != size)
        return fail_symbol(name, x->symbols[s].sizes[0], size);
    x->symbol_of[k][d] = s;
    return TREK_OK;
}

static trek_status open_listed(trek_onnx *x, trek_var *const *inputs, const trek_onnx_dim *listed, int64_t *others)
{
    int k = listed->input, ndim = k >= 0 && k < x->n_inputs && inputs[k] ? trek_var_ndim(inputs[k]) : 0;
    int d = listed->dim < 0 ? listed->dim + ndim : listed->dim;
    if (d < 0 || d >= ndim || !listed->name || !*listed->name || listed->other < 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "onnx_export: .dims: input %d, dimension %d, name %s, other size %lld; must be an input, its dimension, "
                         "a name, and another size",
                         k, listed->dim, listed->name ? listed->name : "NULL", (long long)listed->other);
    return open_dim(x, inputs, k, d, listed->name, listed->other, others);
}

/* Avoids sizes of 1 where possible, because broadcasting and squeezing treat them specially. */
static void plan_runs(trek_onnx *x, const int64_t *others)
{
    x->n_runs = x->n_symbols + 2;
    for (int s = 0; s < x->n_symbols; s++) {
        int64_t given = others[s], size = x->symbols[s].sizes[0];
        int64_t first = size > 1 ? size : given > 1 ? given : 2;
        int64_t second = given > 0 && given != first ? given : first + 1;
        for (int r = 0; r < x->n_runs; r++)
            x->symbols[s].sizes[r] = r == s + 1 ? second : r == x->n_runs - 1 ? (given > 0 ? second : first + 2) : first;
    }
}

static trek_status open_dims(trek_onnx *x, trek_var *const *inputs)
{
    int64_t others[TREK_ONNX_SYMBOLS] = { 0 };
    trek_status status = TREK_OK;
    for (int k = 0; k < x->n_inputs; k++)
        for (int d = 0; d < TREK_MAX_DIMS; d++)
            x->symbol_of[k][d] = -1;
    for (int i = 0; i < x->opts->n_dims && status == TREK_OK; i++)
        status = open_listed(x, inputs, &x->opts->dims[i], others);
    for (int k = 0; k < x->n_inputs && x->opts->batch != TREK_OFF && status == TREK_OK; k++) {
        bool has = !inputs[k] || trek_var_ndim(inputs[k]) == 0 || x->symbol_of[k][0] >= 0;
        for (int d = 0; !has && d < trek_var_ndim(inputs[k]); d++)
            has = x->symbol_of[k][d] >= 0 && strcmp(x->symbols[x->symbol_of[k][d]].name, "batch") == 0;
        if (!has)
            status = open_dim(x, inputs, k, 0, "batch", 0, others);
    }
    plan_runs(x, others);
    return status;
}

static const char *listed_name(const char *const *names, int k) { return names ? names[k] : NULL; }

/* Returns the k-th entry of a NULL-terminated list. */
static const char *nth(const char *const *names, int k)
{
    for (int j = 0; names && names[j]; j++)
        if (j == k)
            return names[j];
    return NULL;
}

static trek_status name_ends(trek_onnx *x)
{
    const trek_module_class *klass = x->module->own->klass;
    trek_graph *graph = trek_graph_of(x->module);
    for (int k = 0; k < x->n_inputs; k++) {
        const char *name = listed_name(x->opts->input_names, k);
        name = name ? name : graph ? trek_graph_input_name(graph, k) : k > 0 ? nth(klass->input_names, k - 1) : NULL;
        x->input_names[k] = name ? name : k == 0 ? "input" : trek_onnx_text(x, "input_%d", k);
    }
    for (int k = 0; k < x->n_results; k++) {
        const char *name = listed_name(x->opts->output_names, k);
        name = name ? name : k > 0 ? nth(klass->result_names, k) : NULL;
        x->output_names[k] = name ? name : k == 0 ? "output" : trek_onnx_text(x, "output_%d", k);
    }
    for (int k = 0; k < x->n_tags; k++)
        x->output_names[x->n_results + k] = x->opts->tags[k];
    int n = x->n_inputs + x->n_results + x->n_tags;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a && !x->failed; b++) {
            const char *one = a < x->n_inputs ? x->input_names[a] : x->output_names[a - x->n_inputs];
            const char *two = b < x->n_inputs ? x->input_names[b] : x->output_names[b - x->n_inputs];
            if (!*one || !*two || strcmp(one, two) == 0)
                return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: names: two inputs or outputs are called \"%s\"; must differ",
                                 one);
        }
    return x->failed ? TREK_ERR_MEMORY : TREK_OK;
}

static trek_status check_opts(const char *path, trek_var *const *inputs, int n, const trek_onnx_opts *o)
{
    if (!path || !inputs)
        return trek_fail_missing("onnx_export", path ? "inputs" : "path");
    if (n < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: n: %d inputs; must be at least 1", n);
    if (!inputs[0])
        return trek_fail_missing("onnx_export", "input 0");
    if (o->opset != 0 && (o->opset < 17 || o->opset > 21))
        return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: .opset: %d; must be 17 to 21", o->opset);
    if (o->n_dims < 0 || (o->n_dims > 0 && !o->dims) || o->n_results < 0 || o->n_results > TREK_MOST_RESULTS)
        return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: .n_dims: %d, .n_results: %d; must be 0 or more", o->n_dims,
                         o->n_results);
    return TREK_OK;
}

static trek_status set_up(trek_onnx *x, trek_var *const *inputs)
{
    trek_graph *graph = trek_graph_of(x->module);
    x->opset = x->opts->opset ? x->opts->opset : 17;
    x->n_results = x->opts->n_results ? x->opts->n_results : 1;
    while (x->opts->tags && x->opts->tags[x->n_tags])
        x->n_tags++;
    if (x->n_tags > 0 && !graph)
        return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: .tags: given for a %s; only a graph has tags",
                         x->module->own->klass->name);
    for (int k = 0; k < x->n_tags; k++) {
        bool found = false;
        for (int j = 0; j < trek_graph_tag_count(graph); j++)
            found |= strcmp(trek_graph_tag_name(graph, j), x->opts->tags[k]) == 0;
        if (!found)
            return trek_fail(TREK_ERR_ARGUMENT, "onnx_export: .tags: the graph has no tag \"%s\"", x->opts->tags[k]);
    }
    x->input_names = trek_onnx_alloc(x, (size_t)x->n_inputs * sizeof *x->input_names);
    x->output_names = trek_onnx_alloc(x, (size_t)(x->n_results + x->n_tags) * sizeof *x->output_names);
    x->symbol_of = trek_onnx_alloc(x, (size_t)x->n_inputs * sizeof *x->symbol_of);
    if (x->failed)
        return TREK_ERR_MEMORY;
    trek_status status = open_dims(x, inputs);
    return status == TREK_OK ? name_ends(x) : status;
}

/* --- running --------------------------------------------------------------------------------------- */

/* Returns the example with the sizes of a run: its elements are repeated along open dimensions, shifted by one in the
 * runs after the first, where floating numbers change as well. Vectors of integers, which may be sorted, continue
 * with their last element. */
static trek_var *example(const trek_onnx *x, trek_var *input, int k, int run)
{
    trek_tensor *t = trek_tensor_retain(trek_var_data(input));
    for (int d = 0; t && d < t->ndim; d++) {
        int s = x->symbol_of[k][d];
        if (s < 0)
            continue;
        int64_t n = x->symbols[s].sizes[run], have = t->sizes[d], *at = trek_alloc((size_t)n * sizeof *at);
        bool ordered = t->ndim == 1 && !trek_dtype_is_float((trek_dtype)t->dtype);
        for (int64_t i = 0; at && i < n; i++)
            at[i] = !ordered ? (i + (run > 0)) % have : i < have ? i : have - 1;
        trek_tensor *index = at ? trek_tensor_from_data(at, trek_dims(n), TREK_I64, t->device) : NULL;
        trek_tensor *next = index ? trek_tensor_index_select(t, index, d) : NULL;
        trek_tensor_release(index);
        trek_tensor_release(t);
        trek_free(at);
        t = next;
    }
    if (t && !t->contiguous) {
        trek_tensor *flat = trek_tensor_contiguous(t);
        trek_tensor_release(t);
        t = flat;
    }
    trek_var *var = t ? trek_var_from(t) : NULL;
    return var && run > 0 && trek_dtype_is_float(trek_var_dtype(var)) ? trek_add_scalar(trek_mul_scalar(var, 0.875), 0.0625)
        : var;
}

static trek_status forward(trek_onnx *x, trek_var *const *inputs, trek_var **results)
{
    trek_graph *graph = trek_graph_of(x->module);
    if (!graph)
        return trek_forward_results(x->module, inputs, x->n_inputs, results, x->n_results);
    if (x->n_results > 1)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "onnx_export: .n_results: more than 1; a graph has one result, and .tags name further values");
    if (graph->autocast != TREK_F32)
        trek_autocast_begin(graph->autocast);
    results[0] = trek_graph_run_route(graph, inputs, x->n_inputs);
    if (graph->autocast != TREK_F32)
        trek_autocast_end();
    if (results[0] && graph->autocast != TREK_F32 && trek_dtype_is_16bit(trek_var_dtype(results[0])))
        results[0] = trek_cast(results[0], TREK_F32);
    for (int k = 0; results[0] && k < x->n_tags; k++)
        results[1 + k] = trek_graph_tagged(graph, x->opts->tags[k]);
    return results[0] ? TREK_OK : trek_error_status();
}

/* Runs one forward, without watching it if `run` is NULL. */
static trek_status run_once(trek_onnx *x, trek_var *const *inputs, int number, trek_onnx_run *run)
{
    int n_outputs = x->n_results + x->n_tags;
    trek_var **given = trek_calloc((size_t)x->n_inputs, sizeof *given),
        **results = trek_calloc((size_t)n_outputs, sizeof *results);
    trek_status status = given && results ? TREK_OK : TREK_ERR_MEMORY;
    trek_scope scope = trek_scope_begin();
    for (int k = 0; k < x->n_inputs && status == TREK_OK; k++)
        if (inputs[k] && !(given[k] = example(x, inputs[k], k, number)))
            status = trek_error_status();
    for (int k = 0; run && k < x->n_inputs && status == TREK_OK; k++)
        if (given[k] && trek_onnx_run_input(run, given[k]->data, k) < 0)
            status = TREK_ERR_MEMORY;
    if (run)
        trek_onnx_run_begin(run);
    if (status == TREK_OK)
        status = forward(x, given, results);
    if (run)
        trek_onnx_run_end(run);
    if (run && status == TREK_OK && !(run->outputs = trek_calloc((size_t)n_outputs, sizeof *run->outputs)))
        status = TREK_ERR_MEMORY;
    for (int k = 0; run && status == TREK_OK && k < n_outputs; k++)
        if ((run->outputs[run->n_outputs++] = trek_onnx_run_value(run, results[k]->data)) < 0)
            status = TREK_ERR_MEMORY;
    if (run)
        trek_onnx_run_settle(run);
    trek_scope_end(scope);
    trek_free(given);
    trek_free(results);
    return status;
}

/* --- what is the same in all runs ----------------------------------------------------------------------- */

static void refuse_at(trek_onnx *x, int call, const char *text)
{
    x->call = call;
    trek_onnx_refuse(x, "%s", text);
}

static void compare_calls(trek_onnx *x, const trek_onnx_run *run)
{
    const trek_onnx_run *first = &x->runs[0];
    int n = first->n_calls < run->n_calls ? first->n_calls : run->n_calls;
    static const char text[] = "the forward runs other ops for other sizes or values of its inputs";
    for (int k = 0; k < n; k++) {
        const trek_onnx_call *a = &first->calls[k], *b = &run->calls[k];
        bool same = a->op == b->op && a->n_inputs == b->n_inputs && memcmp(a->outputs, b->outputs, sizeof a->outputs) == 0;
        for (int j = 0; same && j < a->n_inputs; j++)
            same = first->inputs[a->first_input + j] == run->inputs[b->first_input + j];
        if (!same) {
            refuse_at(x, k, text);
            return;
        }
    }
    if (first->n_calls != run->n_calls)
        refuse_at(x, n < first->n_calls ? n : n - 1, text);
}

static void compare_values(trek_onnx *x, const trek_onnx_run *run)
{
    const trek_onnx_run *first = &x->runs[0];
    bool same = first->n_values == run->n_values &&
        memcmp(first->outputs, run->outputs, (size_t)first->n_outputs * sizeof *first->outputs) == 0;
    for (int k = 0; same && k < first->n_values; k++) {
        const trek_onnx_value *a = &first->values[k], *b = &run->values[k];
        same = a->kind == b->kind && a->dtype == b->dtype && a->ndim == b->ndim && a->from == b->from;
    }
    if (!same)
        refuse_at(x, -1, "the forward gives other values for other sizes or values of its inputs");
}

/* --- leaves ------------------------------------------------------------------------------------------------ */

typedef struct entry_search {
    const trek_tensor *wanted;
    char *name;
    trek_onnx *x;
} entry_search;

static trek_status note_entry(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    entry_search *s = arg;
    (void)is_buffer;
    const trek_tensor *t = trek_var_data(var);
    if (t->storage != s->wanted->storage || t->data != s->wanted->data || t->dtype != s->wanted->dtype ||
        !trek_same_sizes(t, s->wanted) || memcmp(t->strides, s->wanted->strides, (size_t)t->ndim * sizeof *t->strides) != 0)
        return TREK_OK;
    s->name = trek_onnx_text(s->x, "%s", name);
    return TREK_ERR_STATE; /* ends the walk */
}

static bool same_content(const trek_tensor *a, const trek_tensor *b)
{
    if (!trek_same_sizes(a, b))
        return false;
    size_t bytes = (size_t)a->numel * trek_item_size[a->dtype];
    char *values = trek_alloc(2 * bytes + 1);
    bool same = values && trek_tensor_to_host(a, (trek_dtype)a->dtype, values, bytes) == TREK_OK &&
        trek_tensor_to_host(b, (trek_dtype)b->dtype, values + bytes, bytes) == TREK_OK &&
        memcmp(values, values + bytes, bytes) == 0;
    trek_free(values);
    return same;
}

/* Whole numbers first + step (k / often): 0, 1, 2, .. or 0, 0, 1, 1, .. */
typedef struct steps {
    int64_t first, step, often;
} steps;

static bool in_steps(const trek_tensor *t, steps *s)
{
    int64_t n = t->numel, k = 1;
    double *values = n > 1 && t->ndim == 1 ? trek_alloc((size_t)n * sizeof *values) : NULL;
    bool is = values && trek_tensor_to_host(t, TREK_F64, values, (size_t)n * sizeof *values) == TREK_OK;
    while (is && k < n && values[k] == values[0])
        k++;
    is = is && k < n;
    double step = is ? values[k] - values[0] : 0;
    for (int64_t j = 0; is && j < n; j++)
        is = fabs(values[j]) < 1e15 && values[j] == rint(values[j]) && values[j] == values[0] + (double)(j / k) * step;
    if (is)
        *s = (steps){ (int64_t)values[0], (int64_t)step, k };
    trek_free(values);
    return is;
}

static const char *as_scalar(trek_onnx *x, const char *size) { return trek_onnx_2(x, "Squeeze", size, trek_onnx_int(x, 0)); }

/* Returns a number that the program computed from the inputs' sizes, or NULL if it is no such number. */
static const char *number_of_sizes(trek_onnx *x, int value)
{
    int64_t number[TREK_ONNX_RUNS], ones[TREK_MAX_DIMS] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    for (int r = 0; r < x->n_runs; r++) {
        double read = NAN;
        trek_tensor_to_host(trek_onnx_seen(x, r, value)->tensor, TREK_F64, &read, sizeof read);
        if (!(fabs(read) < 1e15) || read != rint(read))
            return NULL;
        number[r] = (int64_t)read;
    }
    const char *size = trek_onnx_size(x, number);
    return size ? trek_onnx_2(x, "Reshape", size, trek_onnx_ints(x, trek_onnx_seen(x, 0, value)->ndim, ones)) : NULL;
}

/* Returns a vector that it computed from them. */
static const char *steps_of_sizes(trek_onnx *x, int value)
{
    int64_t first[TREK_ONNX_RUNS], count[TREK_ONNX_RUNS], step[TREK_ONNX_RUNS];
    steps s = { 0 }, own = { 0 };
    for (int r = 0; r < x->n_runs; r++) {
        const trek_tensor *t = trek_onnx_seen(x, r, value)->tensor;
        if (!in_steps(t, &own) || (r > 0 && own.often != s.often))
            return NULL;
        s = own;
        first[r] = own.first;
        step[r] = own.step;
        count[r] = t->numel;
    }
    const char *begin = trek_onnx_size(x, first), *n = trek_onnx_size(x, count), *by = trek_onnx_size(x, step);
    if (!begin || !n || !by)
        return NULL;
    const char *zero = trek_onnx_scalar(x, TREK_I64, 0), *one = trek_onnx_scalar(x, TREK_I64, 1);
    const char *made = trek_onnx_3(x, "Range", zero, as_scalar(x, n), one);
    if (s.often > 1)
        made = trek_onnx_2(x, "Div", made, trek_onnx_int(x, s.often));
    if (!trek_onnx_same(x, step) || step[0] != 1)
        made = trek_onnx_2(x, "Mul", made, by);
    return trek_onnx_same(x, first) && first[0] == 0 ? made : trek_onnx_2(x, "Add", made, begin);
}

static const char *leaf_of_sizes(trek_onnx *x, int value)
{
    bool number = true;
    for (int r = 0; r < x->n_runs; r++)
        number = number && trek_onnx_seen(x, r, value)->tensor->numel == 1;
    const char *made = number ? number_of_sizes(x, value) : steps_of_sizes(x, value);
    return made ? trek_onnx_cast(x, made, TREK_I64, trek_onnx_seen(x, 0, value)->dtype) : NULL;
}

static const char *leaf_name(trek_onnx *x, int value)
{
    const trek_onnx_value *v = trek_onnx_seen(x, 0, value);
    bool outside = true, same = true;
    for (int r = 1; r < x->n_runs; r++) {
        outside = outside && x->runs[r].values[value].tensor->storage == v->tensor->storage;
        same = same && (outside || same_content(v->tensor, x->runs[r].values[value].tensor));
    }
    entry_search search = { .wanted = v->tensor, .x = x };
    if (outside)
        trek_walk_entries(x->module, TREK_WALK_PARAMS | TREK_WALK_BUFFERS, note_entry, &search);
    if (outside || same)
        return trek_onnx_constant(x, search.name, v->tensor);
    const char *name = leaf_of_sizes(x, value);
    if (!name)
        trek_onnx_refuse(x, "it reads a value that depends on the inputs, but was not made by an op");
    return name ? name : "";
}

/* --- nodes -------------------------------------------------------------------------------------------------- */

/* Returns what a call's nodes read. A recurrent layer reads the inputs of the preceding linear instead of the gates. */
static int reads(const trek_onnx *x, int call, int k)
{
    const trek_onnx_run *run = &x->runs[0];
    const trek_onnx_call *c = &run->calls[call];
    int linear = trek_onnx_gates_linear(x, call), gates = linear >= 0 ? run->calls[linear].n_inputs : 1;
    if (k < gates)
        return run->inputs[linear >= 0 ? run->calls[linear].first_input + k : c->first_input];
    k -= gates - 1;
    return k < c->n_inputs ? run->inputs[c->first_input + k] : -2;
}

static void mark(trek_onnx *x)
{
    const trek_onnx_run *run = &x->runs[0];
    for (int k = 0; k < run->n_outputs; k++)
        x->wanted[run->outputs[k]] = true;
    for (int call = run->n_calls - 1; call >= 0; call--) {
        for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
            x->live[call] |= run->calls[call].outputs[k] >= 0 && x->wanted[run->calls[call].outputs[k]];
        for (int k = 0, value; x->live[call] && run->calls[call].n_inputs > 0 && (value = reads(x, call, k)) != -2; k++)
            if (value >= 0)
                x->wanted[value] = true;
    }
}

/* The calls are in order. */
static void mark_followers(trek_onnx *x)
{
    const trek_onnx_run *run = &x->runs[0];
    for (int k = 0; k < run->n_values; k++)
        x->follows[k] = run->values[k].kind == TREK_ONNX_INPUT;
    for (int call = 0; call < run->n_calls; call++) {
        const trek_onnx_call *c = &run->calls[call];
        bool any = false;
        for (int k = 0; k < c->n_inputs; k++)
            any = any || (run->inputs[c->first_input + k] >= 0 && x->follows[run->inputs[c->first_input + k]]);
        for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
            if (c->outputs[k] >= 0)
                x->follows[c->outputs[k]] = any;
    }
}

static void name_value(trek_onnx *x, int value)
{
    const trek_onnx_value *v = trek_onnx_seen(x, 0, value);
    if (x->names[value] || v->kind == TREK_ONNX_MADE)
        return;
    if (v->kind == TREK_ONNX_LOST)
        trek_onnx_refuse(x, "it reads memory that was written in part");
    x->names[value] = v->kind == TREK_ONNX_INPUT ? x->input_names[v->from] : v->kind == TREK_ONNX_LEAF ? leaf_name(x, value) : "";
}

/* Returns the name that a result has as an output of the model, or NULL. */
static const char *output_name(const trek_onnx *x, int value)
{
    const trek_onnx_run *run = &x->runs[0];
    for (int k = 0; k < run->n_outputs; k++)
        if (run->outputs[k] == value)
            return x->output_names[k];
    return NULL;
}

static void write_call(trek_onnx *x, int call)
{
    const trek_onnx_call *c = &x->runs[0].calls[call];
    const char *outs[TREK_MAX_OUTPUTS] = { NULL };
    x->call = call;
    for (int k = 0, value; c->n_inputs > 0 && (value = reads(x, call, k)) != -2; k++)
        if (value >= 0)
            name_value(x, value);
    const trek_onnx_row *row = trek_onnx_row_of(c->op->id);
    if (!row) {
        trek_onnx_refuse(x, "%s", c->op->flags & TREK_OP_RANDOM ? "random numbers are not exported"
                         : "ONNX does not have this op");
        return;
    }
    int first = x->n_nodes;
    x->type = row->type ? row->type : "";
    if (trek_onnx_fine(x))
        row->write(x, outs);
    for (int k = 0; k < TREK_MAX_OUTPUTS && trek_onnx_fine(x); k++) {
        int value = c->outputs[k];
        if (value < 0 || !x->wanted[value])
            continue;
        const char *name = output_name(x, value);
        bool own = false; /* the output of one of these nodes, not an input passed through */
        for (int j = first; outs[k] && j < x->n_nodes; j++)
            own |= trek_onnx_makes(x, j, outs[k]);
        if (name && own)
            trek_onnx_rename(x, first, outs[k], name);
        if (!outs[k])
            trek_onnx_refuse(x, "its result %d has no counterpart", k);
        x->names[value] = name && own ? name : outs[k];
    }
}

/* Writes outputs that are an input, a parameter, or the same value twice. */
static void write_outputs(trek_onnx *x)
{
    const trek_onnx_run *run = &x->runs[0];
    x->call = -1;
    for (int k = 0; k < run->n_outputs; k++) {
        int value = run->outputs[k];
        name_value(x, value);
        if (!x->names[value] || !trek_onnx_fine(x) || strcmp(x->names[value], x->output_names[k]) == 0)
            continue;
        int first = x->n_nodes;
        const char *same = trek_onnx_1(x, "Identity", x->names[value]);
        trek_onnx_rename(x, first, same, x->output_names[k]);
    }
}

static void check_names(trek_onnx *x)
{
    for (int k = 0; k < x->n_inputs + x->n_results + x->n_tags; k++) {
        const char *name = k < x->n_inputs ? x->input_names[k] : x->output_names[k - x->n_inputs];
        if (trek_onnx_has_constant(x, name))
            trek_onnx_refuse(
                x, "an input or output and a parameter are both named \"%s\"; input_names and output_names give others", name);
    }
}

static void write_nodes(trek_onnx *x)
{
    const trek_onnx_run *run = &x->runs[0];
    x->live = trek_onnx_alloc(x, (size_t)run->n_calls + 1);
    x->wanted = trek_onnx_alloc(x, (size_t)run->n_values + 1);
    x->follows = trek_onnx_alloc(x, (size_t)run->n_values + 1);
    x->names = trek_onnx_alloc(x, (size_t)(run->n_values + 1) * sizeof *x->names);
    if (x->failed)
        return;
    mark(x);
    mark_followers(x);
    for (int call = 0; call < run->n_calls && trek_onnx_fine(x); call++)
        if (x->live[call])
            write_call(x, call);
    if (trek_onnx_fine(x))
        write_outputs(x);
    if (trek_onnx_fine(x))
        check_names(x);
}

/* --- before and after -------------------------------------------------------------------------------------------- */

/* What a forward changes: the modes set here, random numbers, tagged values. */
typedef struct before {
    int n_modules, cap_modules, n_tags, cap_tags;
    struct { trek_module *module; bool training; } *modules;
    struct { trek_graph *graph; int tag; trek_var *value; } *tags;
    uint64_t step, draw;
    const trek_rank_watch *watch;
    bool grad;
} before;

static trek_status note_module(const char *name, trek_module *module, void *arg)
{
    (void)name;
    before *b = arg;
    if (trek_array_grow(&b->modules, &b->cap_modules, b->n_modules + 1, sizeof *b->modules) != TREK_OK)
        return TREK_ERR_MEMORY;
    b->modules[b->n_modules].module = module;
    b->modules[b->n_modules++].training = module->own->training;
    trek_graph *graph = trek_graph_of(module);
    if (graph && graph->layout.n_states > 0)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "onnx_export: graph %s: it carries state from one forward to the next; make it an input",
                         *name ? name : "itself");
    for (int k = 0; graph && k < trek_graph_tag_count(graph); k++) {
        if (trek_array_grow(&b->tags, &b->cap_tags, b->n_tags + 1, sizeof *b->tags) != TREK_OK)
            return TREK_ERR_MEMORY;
        b->tags[b->n_tags].graph = graph;
        b->tags[b->n_tags].tag = k;
        b->tags[b->n_tags++].value = trek_var_retain(trek_graph_tag_value(graph, k));
    }
    return TREK_OK;
}

static trek_status begin(trek_onnx *x, before *b)
{
    *b = (before){ .step = trek_rank_here.rng_step, .draw = trek_rank_here.rng_draw, .watch = trek_rank_here.watch };
    trek_rank_here.watch = NULL;
    trek_no_grad_begin();
    trek_fp8_pause(true);
    trek_status status = trek_walk_modules(x->module, 0, note_module, b);
    for (int k = 0; k < b->n_modules && status == TREK_OK; k++)
        b->modules[k].module->own->training = false;
    return status;
}

static void restore(before *b)
{
    for (int k = 0; k < b->n_modules; k++)
        b->modules[k].module->own->training = b->modules[k].training;
    for (int k = 0; k < b->n_tags; k++) {
        trek_graph_put_tag(b->tags[k].graph, b->tags[k].tag, b->tags[k].value);
        trek_var_release(b->tags[k].value);
    }
    trek_free(b->modules);
    trek_free(b->tags);
    trek_fp8_pause(false);
    trek_no_grad_end();
    trek_rank_here.watch = b->watch;
    trek_rank_here.rng_step = b->step;
    trek_rank_here.rng_draw = b->draw;
}

/* --- all of it --------------------------------------------------------------------------------------------------- */

/* Makes a forward fail where the problem is, so that its error has the module's path. */
static trek_status tell(trek_onnx *x, trek_var *const *inputs)
{
    if (x->problem_call >= 0) {
        trek_onnx_run run = { .fail_at = x->problem_call, .problem = x->problem };
        run_once(x, inputs, 0, &run);
        trek_onnx_run_clear(&run);
    }
    return trek_fail_after(TREK_ERR_UNSUPPORTED, "onnx_export: %s: %s", x->module->own->klass->name, x->problem);
}

static trek_status trace_and_write(trek_onnx *x, const char *path, trek_var *const *inputs)
{
    trek_status status = set_up(x, inputs);
    if (status == TREK_OK)
        status = run_once(x, inputs, 0, NULL); /* whatever modules make only once has been made afterwards */
    for (int r = 0; r < x->n_runs && status == TREK_OK; r++)
        status = run_once(x, inputs, r, &x->runs[r]);
    for (int r = 1; r < x->n_runs && status == TREK_OK && trek_onnx_fine(x); r++) {
        compare_calls(x, &x->runs[r]);
        if (trek_onnx_fine(x))
            compare_values(x, &x->runs[r]);
    }
    if (status == TREK_OK && trek_onnx_fine(x))
        write_nodes(x);
    if (status == TREK_OK && x->failed)
        status = trek_error_status() != TREK_OK ? trek_error_status() : trek_fail(TREK_ERR_MEMORY, "onnx_export: out of memory");
    if (status == TREK_OK && x->problem[0])
        status = tell(x, inputs);
    return status == TREK_OK ? trek_onnx_write(x, path) : status;
}

static void clear(trek_onnx *x)
{
    for (int r = 0; r < TREK_ONNX_RUNS; r++)
        trek_onnx_run_clear(&x->runs[r]);
    for (int k = 0; k < x->n_kept; k++)
        trek_tensor_release(x->kept[k]);
    trek_free(x->kept);
    trek_free(x->nodes);
    trek_free(x->tensors);
    while (x->chunks) {
        trek_onnx_chunk *next = x->chunks->next;
        trek_free(x->chunks);
        x->chunks = next;
    }
    trek_free(x);
}

trek_status trek_onnx_export(trek_module *module, const char *path, trek_var *const *inputs, int n, const trek_onnx_opts *opts)
{
    static const trek_onnx_opts defaults;
    opts = opts ? opts : &defaults;
    if (!module)
        return trek_fail_missing("onnx_export", "module");
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    if (check_opts(path, inputs, n, opts) != TREK_OK || !trek_protobuf_there("onnx_export"))
        return trek_error_status();
    trek_onnx *x = trek_calloc(1, sizeof *x);
    if (!x)
        return TREK_ERR_MEMORY;
    x->module = module;
    x->opts = opts;
    x->n_inputs = n;
    x->call = x->problem_call = -1;
    for (int r = 0; r < TREK_ONNX_RUNS; r++)
        x->runs[r].fail_at = -1;
    before b;
    trek_status status = begin(x, &b);
    if (status == TREK_OK)
        status = trace_and_write(x, path, inputs);
    restore(&b);
    clear(x);
    return status;
}
