/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that all run, weighted by a router, and branches to which rows are sent. */
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "graph/graph_internal.h"
#include "graph/verbs.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/memory_internal.h"
#include "tensor/row_map.h"
#include "tensor/status_internal.h"

typedef struct routed {
    trek_module base;         /* children: the router, followed by the parts in order */
    trek_module *router;
} routed;

static int part_count(const trek_module *self) { return self->own->n_children - 1; }
static trek_module *part_of(const trek_module *self, int k) { return self->own->children[1 + k].module; }

static void routed_describe(const trek_module *self, char *text, size_t size) { snprintf(text, size, "%d", part_count(self)); }

/* The router comes first: it runs before the parts, and is named so. */
static trek_module *routed_new(const trek_module_class *klass, trek_module *router, trek_module *const *parts, int n)
{
    trek_module *base = trek_module_new(klass);
    if (!base)
        return NULL;
    trek_module_add(base, "router", offsetof(routed, router), router);
    for (int k = 0; k < n; k++) {
        char name[16];
        snprintf(name, sizeof name, "%d", k);
        trek_module_add(base, name, TREK_NO_FIELD, parts[k]);
    }
    return trek_module_check(base);
}

/* --- gate --------------------------------------------------------------------------- */

/* Returns the weights of part k for y: [...] with the router's leading dimensions becomes [..., 1, ...] with y's. */
static trek_var *weights_for(trek_var *weights, int k, trek_var *y)
{
    int leading = trek_var_ndim(weights) - 1;
    trek_shape shape = trek_var_shape(y), given = trek_var_shape(weights);
    bool fits = leading <= shape.ndim;
    for (int d = 0; fits && d < leading; d++)
        fits = given.sizes[d] == shape.sizes[d];
    if (!fits) {
        char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
        return trek_fail_null(TREK_ERR_SHAPE,
                              "gate: router: weights of shape %s do not match the result of expert %d, of shape %s; all leading "
                              "dimensions must be equal",
                              trek_shape_format(given, a, sizeof a), k, trek_shape_format(shape, b, sizeof b));
    }
    for (int d = leading; d < shape.ndim; d++)
        shape.sizes[d] = 1;
    return trek_reshape(trek_select(weights, -1, k), shape);
}

static trek_var *weighed(trek_var *weights, int k, trek_module *expert, trek_var *x)
{
    trek_var *y = trek_forward(expert, x), *w = y ? weights_for(weights, k, y) : NULL;
    return w ? trek_mul(y, w) : NULL;
}

static trek_var *gate_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    int experts = part_count(self);
    trek_var *weights = trek_verb_run(((routed *)self)->router, inputs, n);
    if (!weights)
        return NULL;
    char text[TREK_SHAPE_TEXT];
    if (trek_var_ndim(weights) < 1 || trek_var_size(weights, -1) != experts)
        return trek_fail_null(TREK_ERR_SHAPE, "gate: router: result of shape %s; must be [..., %d]",
                              trek_shape_format(trek_var_shape(weights), text, sizeof text), experts);
    trek_var *sum = weighed(weights, 0, part_of(self, 0), inputs[0]);
    for (int k = 1; k < experts && sum; k++) {
        trek_var *part = weighed(weights, k, part_of(self, k), inputs[0]);
        if (part && !trek_shape_equal(trek_var_shape(part), trek_var_shape(sum))) {
            char other[TREK_SHAPE_TEXT];
            return trek_fail_null(TREK_ERR_SHAPE, "gate: expert %d: result of shape %s; the experts before it gave %s", k,
                                  trek_shape_format(trek_var_shape(part), text, sizeof text),
                                  trek_shape_format(trek_var_shape(sum), other, sizeof other));
        }
        sum = trek_add(sum, part);
    }
    return sum;
}

static trek_var *gate_forward(trek_module *self, trek_var *x) { return gate_forward_many(self, &x, 1); }

static const trek_module_class gate_class = { .name = "gate", .size = sizeof(routed), .forward = gate_forward,
                                              .forward_many = gate_forward_many, .describe = routed_describe,
                                              .hands_inputs_on = true };

trek_module *trek_gate_new(trek_module *router, trek_module *const *experts, int n)
{
    return routed_new(&gate_class, router, experts, n);
}

/* --- switch ---------------------------------------------------------------------------- */

/* Reads which branches the router has chosen. */
static trek_status read_choices(const trek_module *self, const double *numbers, int64_t n, int64_t *choices)
{
    int branches = part_count(self);
    for (int64_t k = 0; k < n; k++) {
        if (!(numbers[k] >= 0 && numbers[k] < branches && numbers[k] == floor(numbers[k]))) {
            char number[40];
            return trek_fail(TREK_ERR_ARGUMENT, "switch: router: %s for row %lld; must be the index of one of %d branches",
                             isnan(numbers[k]) ? "NaN" : trek_number_text(numbers[k], 9, number), (long long)k, branches);
        }
        choices[k] = (int64_t)numbers[k];
    }
    return TREK_OK;
}

/* Runs branch k on its rows, in the order of the batch: [count] -> [count]. */
static trek_var *run_rows(trek_module *branch, trek_var *x, const int64_t *rows, int64_t count, int64_t total)
{
    trek_var *index = trek_verb_index(rows, count, trek_var_device(x)), *part = index ? trek_index_select(x, 0, index) : NULL;
    trek_row_map *map = part ? trek_row_map_new(rows, count, total) : NULL;
    if (!map)
        return NULL;
    const trek_row_map *before = trek_rank_here.row_map;
    trek_rank_here.row_map = map;
    trek_var *y = trek_forward(branch, part);
    trek_rank_here.row_map = before;
    trek_row_map_release(map);
    if (!y || (trek_var_ndim(y) > 0 && trek_var_size(y, 0) == count))
        return y;
    char text[TREK_SHAPE_TEXT];
    return trek_fail_null(TREK_ERR_SHAPE, "switch: branch: result of shape %s for %lld rows; the number of rows must not change",
                          trek_shape_format(trek_var_shape(y), text, sizeof text), (long long)count);
}

/* Runs each branch that has rows, in order. Also computes where the result of each row is among the concatenated
 * results. */
static int run_branches(trek_module *self, trek_var *x, const int64_t *choices, int64_t total, int64_t *rows, int64_t *places,
                        trek_var **results)
{
    trek_rng_part part = trek_rng_part_begin();
    int ran = 0;
    int64_t done = 0;
    for (int b = 0; b < part_count(self); b++) {
        int64_t count = 0;
        for (int64_t k = 0; k < total; k++)
            if (choices[k] == b) {
                places[k] = done + count;
                rows[count++] = k;
            }
        if (count == 0)
            continue;
        trek_rng_part_run(&part, (uint64_t)b);
        results[ran] = count == total ? trek_forward(part_of(self, b), x) : run_rows(part_of(self, b), x, rows, count, total);
        if (!results[ran++]) {
            ran = -1;
            break;
        }
        done += count;
    }
    trek_rng_part_end(&part);
    return ran;
}

/* Concatenates the results and puts each row back in its place. */
static trek_var *put_back(trek_var *const *results, int n, const int64_t *places, int64_t total)
{
    for (int k = 1; k < n; k++) {
        trek_shape first = trek_var_shape(results[0]), other = trek_var_shape(results[k]);
        bool fits = first.ndim == other.ndim;
        for (int d = 1; fits && d < first.ndim; d++)
            fits = first.sizes[d] == other.sizes[d];
        char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
        if (!fits)
            return trek_fail_null(TREK_ERR_SHAPE,
                                  "switch: branches: results of shapes %s and %s; they may differ in the number of rows only",
                                  trek_shape_format(first, a, sizeof a), trek_shape_format(other, b, sizeof b));
    }
    if (n == 1)
        return results[0];
    trek_var *all = trek_cat(results, n, 0), *index = all ? trek_verb_index(places, total, trek_var_device(all)) : NULL;
    return index ? trek_index_select(all, 0, index) : NULL;
}

static trek_var *send_rows(trek_module *self, trek_var *x, const int64_t *choices, int64_t total)
{
    int64_t *rows = trek_calloc(2 * (size_t)total, sizeof *rows);
    trek_var **results = rows ? trek_calloc((size_t)part_count(self), sizeof *results) : NULL;
    int ran = results ? run_branches(self, x, choices, total, rows, rows + total, results) : -1;
    trek_var *y = ran > 0 ? put_back(results, ran, rows + total, total) : NULL;
    trek_free(results);
    trek_free(rows);
    return y;
}

/* Runs one branch on all rows, with its own random numbers. Without rows it runs the first branch. */
static trek_var *run_whole(trek_module *self, trek_var *x, int64_t branch)
{
    trek_rng_part part = trek_rng_part_begin();
    trek_rng_part_run(&part, (uint64_t)branch);
    trek_var *y = trek_forward(part_of(self, (int)branch), x);
    trek_rng_part_end(&part);
    return y;
}

static trek_var *switch_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    int64_t rows = trek_verb_rows("switch", inputs[0]);
    trek_var *index = rows < 0 ? NULL : trek_verb_run(((routed *)self)->router, inputs, n);
    double *numbers = index ? trek_calloc((size_t)rows + 1, sizeof *numbers) : NULL;
    int64_t *choices = numbers ? trek_calloc((size_t)rows + 1, sizeof *choices) : NULL;
    trek_var *y = NULL;
    if (choices && trek_verb_numbers("switch: router", index, rows, numbers) == TREK_OK &&
        read_choices(self, numbers, rows, choices) == TREK_OK)
        y = rows > 0 ? send_rows(self, inputs[0], choices, rows) : run_whole(self, inputs[0], 0);
    trek_free(choices);
    trek_free(numbers);
    return y;
}

static trek_var *switch_forward(trek_module *self, trek_var *x) { return switch_forward_many(self, &x, 1); }

/* Returns the router's choice for all rows; -1 on failure. */
static int64_t choice_of_all(const trek_module *self, trek_var *index)
{
    int64_t n = trek_var_numel(index), choice = -1;
    if (n == 0)
        return 0;
    double *numbers = trek_alloc((size_t)n * sizeof *numbers);
    trek_status status = numbers ? trek_tensor_to_host(trek_var_data(index), TREK_F64, numbers, (size_t)n * sizeof *numbers)
                                 : trek_error_status();
    if (status == TREK_OK)
        status = read_choices(self, numbers, 1, &choice);
    for (int64_t k = 1; k < n && status == TREK_OK; k++)
        if (numbers[k] != numbers[0])
            status = trek_fail(
                TREK_ERR_ARGUMENT,
                "switch: router: %g for row 0 and %g for row %lld; one branch runs the whole batch, so all rows need the same",
                numbers[0], numbers[k], (long long)k);
    trek_free(numbers);
    return status == TREK_OK ? choice : -1;
}

static trek_var *switch_batch_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *index = trek_verb_run(((routed *)self)->router, inputs, n);
    int64_t choice = index ? choice_of_all(self, index) : -1;
    return choice >= 0 ? run_whole(self, inputs[0], choice) : NULL;
}

static trek_var *switch_batch_forward(trek_module *self, trek_var *x) { return switch_batch_forward_many(self, &x, 1); }

static const trek_module_class switch_class = { .name = "switch", .size = sizeof(routed), .forward = switch_forward,
                                                .forward_many = switch_forward_many, .describe = routed_describe,
                                                .hands_inputs_on = true };
static const trek_module_class switch_batch_class = {
    .name = "switch_batch", .size = sizeof(routed), .forward = switch_batch_forward, .forward_many = switch_batch_forward_many,
    .describe = routed_describe, .couples_samples = true, .hands_inputs_on = true,
};

static trek_status refuse_states(const char *path, trek_module *module, void *arg)
{
    (void)arg;
    const trek_graph *graph = trek_graph_of(module);
    if (!graph || graph->layout.n_states == 0)
        return TREK_OK;
    return trek_fail(TREK_ERR_UNSUPPORTED,
                     "switch: branch: \"%s\" carries state from forward to forward, which would belong to other rows; such a "
                     "module cannot be in a branch",
                     path);
}

trek_module *trek_switch_new(trek_module *router, trek_module *const *branches, int n, bool whole)
{
    for (int k = 0; k < n; k++)
        if (trek_verb_refuse_meeting("switch", branches[k]) != TREK_OK ||
            (!whole && trek_module_each(branches[k], refuse_states, NULL) != TREK_OK))
            return NULL;
    return routed_new(whole ? &switch_batch_class : &switch_class, router, branches, n);
}
