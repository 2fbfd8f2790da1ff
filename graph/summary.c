/* SPDX-License-Identifier: Apache-2.0 */
/* Summaries: what is known of each layer that ran and of the modules that contain them, and both as a table. */
#include "graph/summary.h"
#include "nn/module_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "graph/graph_internal.h"
#include "graph/quiet_forward.h"
#include "nn/module_tree.h"
#include "nn/pointer_map.h"
#include "nn/watch.h"

enum { DEFAULT_DEPTH = 3, COLUMN = 22, COUNT_COLUMN = 16 };

/* A module's position in the tree: the first path to it. */
typedef struct place {
    trek_module *module;
    char *path;
    int depth, parent;        /* parent: an index, or -1 */
    int64_t params, trainable; /* of the module and those below it */
} place;

/* A line: a run of a module, or a module that contains such. */
typedef struct line {
    int place;                /* -1: a module outside the tree */
    trek_module *module;
    int depth, number;        /* number: among the lines of its depth */
    bool ran, again;          /* again: an earlier line has the same module */
    trek_shape input, output;
    int64_t mult_adds, pass_bytes;
} line;

typedef struct summary {
    place *places;
    line *lines;              /* in the order in which they began */
    int *open;                /* lines that have not ended */
    int n_places, cap_places, n_lines, cap_lines, n_open, cap_open;
    trek_pointer_map numbers; /* from modules to indices in places */
    trek_pointer_map shown;   /* modules that have a line */
    trek_status status;       /* of the work done while the module runs */
    trek_module_totals totals;
} summary;

static void clear_summary(summary *s)
{
    for (int k = 0; k < s->n_places; k++)
        trek_free(s->places[k].path);
    trek_free(s->places);
    trek_free(s->lines);
    trek_free(s->open);
    trek_pointer_map_clear(&s->numbers);
    trek_pointer_map_clear(&s->shown);
}

/* --- places ------------------------------------------------------------------ */

static int parent_of(const summary *s, const char *path, const char *last)
{
    size_t length = (size_t)(last - path);
    for (int k = s->n_places - 1; k >= 0; k--)
        if (strlen(s->places[k].path) == length && memcmp(s->places[k].path, path, length) == 0)
            return k;
    return 0;
}

static trek_status count_param(const char *name, trek_var *param, void *arg)
{
    (void)name;
    place *p = arg;
    p->params += trek_var_numel(param);
    p->trainable += trek_var_requires_grad(param) ? trek_var_numel(param) : 0;
    return TREK_OK;
}

static trek_status add_place(const char *path, trek_module *module, void *arg)
{
    summary *s = arg;
    bool added;
    trek_status status = trek_array_grow(&s->places, &s->cap_places, s->n_places + 1, sizeof *s->places);
    if (status == TREK_OK)
        status = trek_pointer_map_add(&s->numbers, module, s->n_places, &added);
    place p = { .module = module, .path = status == TREK_OK ? trek_strdup(path) : NULL, .parent = -1 };
    if (!p.path)
        return TREK_ERR_MEMORY;
    const char *last = strrchr(path, '.');
    if (*path)
        p.parent = parent_of(s, path, last ? last : path);
    p.depth = *path ? s->places[p.parent].depth + 1 : 0;
    s->places[s->n_places++] = p;
    return trek_module_each_param(module, count_param, &s->places[s->n_places - 1]);
}

/* --- lines --------------------------------------------------------------------- */

static trek_status add_line(summary *s, trek_module *module, int at)
{
    bool fresh;
    trek_status status = trek_array_grow(&s->lines, &s->cap_lines, s->n_lines + 1, sizeof *s->lines);
    if (status == TREK_OK)
        status = trek_pointer_map_add(&s->shown, module, 0, &fresh);
    if (status != TREK_OK)
        return status;
    int depth = at >= 0 ? s->places[at].depth : s->n_open ? s->lines[s->open[s->n_open - 1]].depth + 1 : 0, number = 1;
    for (int k = s->n_lines - 1; k >= 0 && number == 1; k--)
        if (s->lines[k].depth == depth)
            number = s->lines[k].number + 1;
    s->lines[s->n_lines++] = (line){ .place = at, .module = module, .depth = depth, .number = number, .again = !fresh };
    return TREK_OK;
}

/* Returns the line above the next line of that depth, or -1. */
static int line_above(const summary *s, int depth)
{
    for (int k = s->n_lines - 1; k >= 0; k--)
        if (s->lines[k].depth < depth)
            return k;
    return -1;
}

/* Adds lines for modules that contain the one at `at` and do not run themselves, where their contents begin. */
static trek_status add_holders(summary *s, int at)
{
    int parent = at >= 0 ? s->places[at].parent : -1;
    if (parent < 0)
        return TREK_OK;
    for (int k = 0; k < s->n_open; k++)
        if (s->lines[s->open[k]].place == parent)
            return TREK_OK;
    int above = line_above(s, s->places[at].depth);
    if (above >= 0 && s->lines[above].place == parent)
        return TREK_OK;
    trek_status status = add_holders(s, parent);
    return status == TREK_OK ? add_line(s, s->places[parent].module, parent) : status;
}

static void begin_run(trek_module *module, trek_var *const *inputs, int n, void *arg)
{
    summary *s = arg;
    int at = trek_pointer_map_get(&s->numbers, module);
    if (s->status == TREK_OK)
        s->status = trek_array_grow(&s->open, &s->cap_open, s->n_open + 1, sizeof *s->open);
    if (s->status == TREK_OK)
        s->status = add_holders(s, at);
    if (s->status == TREK_OK)
        s->status = add_line(s, module, at);
    if (s->status != TREK_OK)
        return;
    if (n > 0 && inputs[0])
        s->lines[s->n_lines - 1].input = trek_var_shape(inputs[0]);
    s->open[s->n_open++] = s->n_lines - 1;
}

/* Applies torchinfo's rule to one parameter. */
static int64_t mult_adds_of(const char *name, int64_t count, const char *klass, trek_shape out)
{
    int64_t rows = out.ndim > 0 ? out.sizes[0] : 1, places = 1;
    if (strcmp(name, "weight") == 0 || strcmp(name, "bias") == 0) {
        for (int d = 2; d < out.ndim && strstr(klass, "conv"); d++)
            places *= out.sizes[d];
        return count * rows * places;
    }
    if (strstr(name, "weight") || strstr(name, "bias"))
        return count * rows * (out.ndim > 1 ? out.sizes[1] : 1);
    return 0;
}

static void end_run(trek_module *module, trek_var *result, void *arg)
{
    summary *s = arg;
    if (s->status != TREK_OK || !s->n_open)
        return;
    line *l = &s->lines[s->open[--s->n_open]];
    if (!result)
        return;
    l->ran = true;
    l->output = trek_var_shape(result);
    for (int k = 0; k < module->own->n_params; k++)
        l->mult_adds += mult_adds_of(module->own->params[k].name, trek_var_numel(module->own->params[k].var),
                                     module->own->klass->name,
                                     l->output);
    if (module->own->n_params)
        l->pass_bytes = 2 * trek_var_numel(result) * (int64_t)trek_dtype_size(trek_var_dtype(result));
    s->totals.mult_adds += l->mult_adds;
    s->totals.pass_bytes += l->pass_bytes;
}

/* Lists the whole tree if nothing runs. */
static trek_status list_places(summary *s)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < s->n_places && status == TREK_OK; k++)
        status = add_line(s, s->places[k].module, k);
    return status;
}

/* --- running ------------------------------------------------------------------------ */

static trek_status run_values(trek_module *module, trek_var *const *inputs, int n, trek_module_totals *totals)
{
    for (int k = 0; k < n; k++)
        if (inputs[k])
            totals->input_bytes += trek_var_numel(inputs[k]) * (int64_t)trek_dtype_size(trek_var_dtype(inputs[k]));
    return trek_quiet_forward(module, inputs, n);
}

static trek_device device_of(trek_module *module, const trek_summary_opts *opts)
{
    trek_device device = opts->device;
    for (int k = 0; k < module->own->n_params; k++)
        return trek_var_device(module->own->params[k].var);
    for (int k = 0; k < module->own->n_children; k++)
        if (trek_module_param_count(module->own->children[k].module) > 0)
            return device_of(module->own->children[k].module, opts);
    return device;
}

static trek_var *make_input(const trek_summary_opts *opts, int k, trek_device device)
{
    trek_dtype dtype = opts->dtypes ? opts->dtypes[k] : TREK_F32;
    return trek_var_from(trek_dtype_is_float(dtype) ? trek_tensor_ones(opts->shapes[k], dtype, device)
                                                    : trek_tensor_zeros(opts->shapes[k], dtype, device));
}

static trek_status run_shapes(trek_module *module, const trek_summary_opts *opts, trek_module_totals *totals)
{
    trek_device device = opts->device.type == TREK_DEVICE_UNSET ? device_of(module, opts) : opts->device;
    trek_scope scope = trek_scope_begin();
    trek_var **inputs = scope.depth ? trek_calloc((size_t)opts->n_inputs, sizeof *inputs) : NULL;
    trek_status status = inputs ? TREK_OK : trek_error_status();
    for (int k = 0; k < opts->n_inputs && status == TREK_OK; k++)
        if (!(inputs[k] = make_input(opts, k, device)))
            status = trek_error_status();
    if (status == TREK_OK)
        status = run_values(module, inputs, opts->n_inputs, totals);
    trek_free(inputs);
    trek_scope_end(scope);
    return status;
}

static trek_status count_bytes(const char *name, trek_var *param, void *arg)
{
    (void)name;
    *(int64_t *)arg += trek_var_numel(param) * (int64_t)trek_dtype_size(trek_var_dtype(param));
    return TREK_OK;
}

static trek_status check(const char *function, const trek_summary_opts *opts)
{
    if (opts->n_inputs < 0 || (opts->n_inputs > 0 && !opts->inputs == !opts->shapes))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .n_inputs: %d inputs; exactly one of .inputs and .shapes must give them",
                         function, opts->n_inputs);
    if (opts->depth < TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .depth: %d; must be TREK_OFF, 0 or more", function, opts->depth);
    return TREK_OK;
}

trek_status trek_summary_run(trek_module *module, const trek_summary_opts *opts, trek_module_totals *totals)
{
    trek_status status = check("module_summary", opts);
    if (status != TREK_OK || !opts->n_inputs)
        return status;
    return opts->inputs ? run_values(module, opts->inputs, opts->n_inputs, totals) : run_shapes(module, opts, totals);
}

static trek_status run_watched(summary *s, trek_module *module, const trek_summary_opts *opts)
{
    trek_module_watch watch = { .begin = begin_run, .end = end_run, .arg = s };
    const trek_module_watch *before = trek_module_watch_set(&watch);
    trek_status status = trek_summary_run(module, opts, &s->totals);
    trek_module_watch_set(before);
    return status == TREK_OK ? s->status : status;
}

static trek_status make_summary(summary *s, const char *function, trek_module *module, const trek_summary_opts *opts)
{
    *s = (summary){ 0 };
    if (!module || !opts)
        return trek_fail_missing(function, module ? "opts" : "module");
    trek_status status = check(function, opts);
    if (status == TREK_OK)
        status = trek_module_each(module, add_place, s);
    if (status == TREK_OK)
        status = trek_module_each_param(module, count_bytes, &s->totals.param_bytes);
    if (status == TREK_OK)
        status = opts->n_inputs ? run_watched(s, module, opts) : list_places(s);
    if (status == TREK_OK) {
        s->totals.params = s->places[0].params;
        s->totals.trainable = s->places[0].trainable;
    }
    return status;
}

trek_status trek_module_measure(trek_module *module, const trek_summary_opts *opts, trek_module_totals *totals)
{
    summary s;
    if (!totals)
        return trek_fail_missing("module_measure", "totals");
    trek_status status = make_summary(&s, "module_measure", module, opts);
    if (status == TREK_OK)
        *totals = s.totals;
    clear_summary(&s);
    return status;
}

/* --- the table ------------------------------------------------------------------------ */

/* Writes e.g. 1,234,567. */
static const char *grouped(int64_t value, char *text)
{
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%" PRId64, value), at = 0;
    for (int k = 0; k < n; k++) {
        text[at++] = digits[k];
        if ((n - k) % 3 == 1 && k + 1 < n && digits[k] != '-')
            text[at++] = ',';
    }
    text[at] = 0;
    return text;
}

/* Returns the columns of a UTF-8 text. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void name_of(const summary *s, const trek_summary_opts *opts, const line *l, char *name, size_t size)
{
    int length = 0;
    for (int k = 1; k < l->depth && length < (int)size - 16; k++)
        length += snprintf(name + length, size - (size_t)length, "│    ");
    length += snprintf(name + length, size - (size_t)length, "%s%s", l->depth == 0 ? "" : l->depth == 1 ? "├─" : "└─",
                       l->module->own->klass->name);
    if (l->depth == 0 || length >= (int)size)
        return;
    if (opts->paths)
        snprintf(name + length, size - (size_t)length, " (%s)", l->place >= 0 ? s->places[l->place].path : "?");
    else
        snprintf(name + length, size - (size_t)length, ": %d-%d", l->depth, l->number);
}

static int deepest(const trek_summary_opts *opts)
{
    return opts->depth == TREK_OFF ? INT32_MAX : opts->depth ? opts->depth : DEFAULT_DEPTH;
}

/* Counts the parameters shown in this line, all and trained ones: its own, and those below it that no line below it
 * shows. */
static void told_here(const summary *s, int index, int depth, int64_t *all, int64_t *trained)
{
    const line *l = &s->lines[index];
    place none = { 0 };
    const place *p = l->place >= 0 ? &s->places[l->place] : &none;
    *all = p->params;
    *trained = p->trainable;
    int below = INT32_MAX; /* depth of a line inside one that already counts */
    for (int k = index + 1; l->depth < depth && k < s->n_lines && s->lines[k].depth > l->depth; k++) {
        const line *inner = &s->lines[k];
        if (inner->depth > below)
            continue;
        below = INT32_MAX;
        if (inner->place < 0)
            continue;
        below = inner->depth;
        *all -= inner->again ? 0 : s->places[inner->place].params;
        *trained -= inner->again ? 0 : s->places[inner->place].trainable;
    }
    *all = *all > 0 ? *all : 0;
}

static int64_t mult_adds_here(const summary *s, int index, int depth)
{
    int64_t sum = s->lines[index].mult_adds;
    for (int k = index + 1; s->lines[index].depth >= depth && k < s->n_lines && s->lines[k].depth > s->lines[index].depth; k++)
        sum += s->lines[k].mult_adds;
    return sum;
}

static void add_padded(trek_text *text, const char *word, int width)
{
    trek_text_format(text, "%s%*s", word, width > width_of(word) ? width - width_of(word) : 1, "");
}

static void add_shape(trek_text *text, bool known, trek_shape shape)
{
    char word[TREK_SHAPE_TEXT];
    add_padded(text, known ? trek_shape_format(shape, word, sizeof word) : "--", COLUMN);
}

static const char *trained_word(const summary *s, const line *l)
{
    const place *p = l->place >= 0 ? &s->places[l->place] : NULL;
    if (!p || !p->params)
        return "--";
    return !p->trainable ? "False" : p->trainable == p->params ? "True" : "Partial";
}

static void add_row(trek_text *text, const summary *s, const trek_summary_opts *opts, int index, int width)
{
    char name[512], number[48], word[64];
    int64_t all, trained;
    const line *l = &s->lines[index];
    name_of(s, opts, l, name, sizeof name);
    add_padded(text, name, width);
    if (opts->input_shapes)
        add_shape(text, l->ran, l->input);
    if (opts->n_inputs)
        add_shape(text, l->ran, l->output);
    told_here(s, index, deepest(opts), &all, &trained);
    bool any = l->place >= 0 && s->places[l->place].params > 0;
    snprintf(word, sizeof word, trained ? "%s" : "(%s)", grouped(all, number));
    add_padded(text, any && l->again ? "(recursive)" : any && all ? word : "--", COUNT_COLUMN);
    int64_t mult_adds = mult_adds_here(s, index, deepest(opts));
    if (opts->n_inputs)
        add_padded(text, mult_adds ? grouped(mult_adds, number) : "--", COUNT_COLUMN);
    trek_text_format(text, "%s\n", trained_word(s, l));
}

static void add_head(trek_text *text, const trek_summary_opts *opts, int width)
{
    add_padded(text, opts->paths ? "Layer (path)" : "Layer: depth-idx", width);
    if (opts->input_shapes)
        add_padded(text, "Input Shape", COLUMN);
    if (opts->n_inputs)
        add_padded(text, "Output Shape", COLUMN);
    add_padded(text, "Param #", COUNT_COLUMN);
    if (opts->n_inputs)
        add_padded(text, "Mult-Adds", COUNT_COLUMN);
    trek_text_add(text, "Trainable\n");
}

static void add_rule(trek_text *text, int width)
{
    for (int k = 0; k < width; k++)
        trek_text_add(text, "=");
    trek_text_add(text, "\n");
}

/* Writes e.g. "1.23" for a number in units of `unit`; with `whole`, whole numbers have no decimals. */
static void add_hundredths(trek_text *text, int64_t value, int64_t unit, bool whole)
{
    char number[48];
    int64_t rest = value % unit, cents = unit >= 100 ? (rest + unit / 200) / (unit / 100) : rest * 100 / unit;
    int64_t integer = value / unit + cents / 100;
    trek_text_add(text, grouped(integer, number));
    if (!whole || rest)
        trek_text_format(text, ".%02d", (int)(cents % 100));
    trek_text_add(text, "\n");
}

static void add_mult_adds(trek_text *text, int64_t value)
{
    bool tera = value >= 1000000000000, giga = value >= 1000000000;
    trek_text_format(text, "Total mult-adds (%s): ", tera ? "T" : giga ? "G" : "M");
    add_hundredths(text, value, tera ? 1000000000000 : giga ? 1000000000 : 1000000, true);
}

static void add_foot(trek_text *text, const trek_module_totals *t, bool ran, int width)
{
    char number[48];
    add_rule(text, width);
    trek_text_format(text, "Total params: %s\n", grouped(t->params, number));
    trek_text_format(text, "Trainable params: %s\n", grouped(t->trainable, number));
    trek_text_format(text, "Non-trainable params: %s\n", grouped(t->params - t->trainable, number));
    if (ran) {
        const char *const names[] = { "Input size", "Forward/backward pass size", "Params size", "Estimated Total Size" };
        int64_t sizes[] = { t->input_bytes, t->pass_bytes, t->param_bytes, t->input_bytes + t->pass_bytes + t->param_bytes };
        add_mult_adds(text, t->mult_adds);
        add_rule(text, width);
        for (int k = 0; k < 4; k++) {
            trek_text_format(text, "%s (MB): ", names[k]);
            add_hundredths(text, sizes[k], 1000000, false);
        }
    }
    add_rule(text, width);
}

char *trek_module_summary_with(trek_module *module, const trek_summary_opts *opts)
{
    summary s;
    trek_text text = { 0 };
    if (make_summary(&s, "module_summary_with", module, opts) != TREK_OK) {
        clear_summary(&s);
        return NULL;
    }
    int width = 40;
    for (int k = 0; k < s.n_lines; k++) {
        char name[512];
        name_of(&s, opts, &s.lines[k], name, sizeof name);
        if (s.lines[k].depth <= deepest(opts) && width_of(name) + 1 > width)
            width = (width_of(name) + 5) / 5 * 5;
    }
    int all = width + COUNT_COLUMN + 9 + (opts->n_inputs ? COLUMN + COUNT_COLUMN : 0) + (opts->input_shapes ? COLUMN : 0);
    add_rule(&text, all);
    add_head(&text, opts, width);
    add_rule(&text, all);
    for (int k = 0; k < s.n_lines; k++)
        if (s.lines[k].depth <= deepest(opts))
            add_row(&text, &s, opts, k, width);
    add_foot(&text, &s.totals, opts->n_inputs > 0, all);
    clear_summary(&s);
    return trek_text_take(&text);
}
