/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: one forward for the prompts, then one for each further token. Rows that have ended stay in the batch
 * without new positions until all rows have ended. */
#include <inttypes.h>
#include <string.h>

#include "autograd/backward.h"
#include "nn/generate.h"
#include "nn/kv_cache_internal.h"
#include "nn/module_tree.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"
#include "tensor/tensor.h"

typedef struct generation {
    trek_module *model;
    trek_kv_cache *cache;     /* may be NULL */
    trek_generate_opts opts;
    trek_device device;
    int64_t rows, most;       /* most: the limit on new tokens */
    int64_t **texts;          /* [rows] each prompt and what followed it */
    int64_t *sizes;           /* [rows] lengths of the texts */
    int64_t *fresh;           /* [rows] how many tokens of each the model has not seen; 0 if the row has ended */
    int64_t *drawn;           /* [rows] */
    bool *ended;              /* [rows] */
    int64_t *room;            /* the memory of all texts */
} generation;

static trek_status find_device(const char *name, trek_var *param, void *arg)
{
    (void)name;
    *(trek_device *)arg = trek_var_device(param);
    return TREK_ERR_CANCELLED; /* ends the walk */
}

static void end(generation *g)
{
    trek_kv_cache_free(&g->cache);
    trek_free(g->texts);
    trek_free(g->sizes);
    trek_free(g->fresh);
    trek_free(g->drawn);
    trek_free(g->ended);
    trek_free(g->room);
}

static trek_status make_room(generation *g, const int64_t *const *prompts, const int64_t *lengths)
{
    size_t rows = (size_t)g->rows;
    int64_t total = 0;
    for (int64_t r = 0; r < g->rows; r++) {
        if (!prompts[r] || lengths[r] < 1 || lengths[r] > (int64_t)1 << 40)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "generate: prompts: prompt %" PRId64 " has %" PRId64 " tokens; must have at least 1", r,
                             prompts[r] ? lengths[r] : 0);
        total += lengths[r] + g->most;
    }
    g->texts = trek_calloc(rows, sizeof *g->texts);
    g->sizes = trek_calloc(rows, sizeof *g->sizes);
    g->fresh = trek_calloc(rows, sizeof *g->fresh);
    g->drawn = trek_calloc(rows, sizeof *g->drawn);
    g->ended = trek_calloc(rows, sizeof *g->ended);
    g->room = trek_calloc((size_t)total, sizeof *g->room);
    if (!g->texts || !g->sizes || !g->fresh || !g->drawn || !g->ended || !g->room)
        return TREK_ERR_MEMORY;
    int64_t *next = g->room;
    for (int64_t r = 0; r < g->rows; r++) {
        g->texts[r] = next;
        next += lengths[r] + g->most;
        g->sizes[r] = g->fresh[r] = lengths[r];
        memcpy(g->texts[r], prompts[r], (size_t)lengths[r] * sizeof **prompts);
    }
    return TREK_OK;
}

static trek_status begin(generation *g, const int64_t *const *prompts, const int64_t *lengths)
{
    const trek_generate_opts *o = &g->opts;
    if (g->rows < 1 || g->rows > (int64_t)1 << 32)
        return trek_fail(TREK_ERR_ARGUMENT, "generate: prompts: %" PRId64 "; must be at least 1", g->rows);
    if (o->max_new_tokens < 0 || o->max_new_tokens > (int64_t)1 << 32 || o->n_eos < 0 || (o->n_eos > 0 && !o->eos))
        return trek_fail(TREK_ERR_ARGUMENT, "generate: .max_new_tokens: %" PRId64 ", .n_eos: %" PRId64 "; must be 0 or more",
                         o->max_new_tokens, o->n_eos);
    g->most = o->max_new_tokens ? o->max_new_tokens : 20;
    g->device = trek_cpu(0);
    trek_module_each_param(g->model, find_device, &g->device);
    trek_status status = make_room(g, prompts, lengths);
    if (status != TREK_OK || o->no_cache)
        return status;
    int64_t longest = 0;
    for (int64_t r = 0; r < g->rows; r++)
        longest = lengths[r] > longest ? lengths[r] : longest;
    g->cache = trek_kv_cache_new(&(trek_kv_cache_opts){ .batch = g->rows, .max_length = longest + g->most });
    return g->cache ? TREK_OK : trek_error_status();
}

/* --- a step --------------------------------------------------------------------------------------- */

/* Returns how many of the row's last tokens the next forward takes. */
static int64_t taken(const generation *g, int64_t r) { return g->cache ? g->fresh[r] : g->sizes[r]; }

/* Returns the tokens of the next forward, [rows, *steps]. *uneven says that rows have different numbers of them. */
static trek_var *next_tokens(const generation *g, int64_t *steps, bool *uneven)
{
    *steps = 1;
    *uneven = false;
    for (int64_t r = 0; r < g->rows; r++)
        *steps = taken(g, r) > *steps ? taken(g, r) : *steps;
    for (int64_t r = 0; r < g->rows; r++)
        *uneven |= taken(g, r) != *steps;
    int64_t *list = trek_calloc((size_t)(g->rows * *steps), sizeof *list);
    for (int64_t r = 0; list && r < g->rows; r++)
        memcpy(list + r * *steps, g->texts[r] + g->sizes[r] - taken(g, r), (size_t)taken(g, r) * sizeof *list);
    trek_tensor *made = list ? trek_tensor_from_data(list, trek_dims(g->rows, *steps), TREK_I64, g->device) : NULL;
    trek_free(list);
    return made ? trek_var_from(made) : NULL;
}

/* Returns each row's logits at its last token, as [rows, V]. */
static trek_var *last_logits(const generation *g, trek_var *y, int64_t steps)
{
    char text[TREK_SHAPE_TEXT];
    bool fits = trek_var_ndim(y) == 3 && trek_var_size(y, 0) == g->rows &&
        (trek_var_size(y, 1) == steps || trek_var_size(y, 1) == 1);
    if (!fits)
        return trek_fail_null(TREK_ERR_SHAPE, "generate: model: result of shape %s; must be [%" PRId64 ", %" PRId64 ", V]",
                              trek_shape_format(trek_var_shape(y), text, sizeof text), g->rows, steps);
    if (trek_var_size(y, 1) == 1)
        return trek_select(y, 1, 0);
    trek_var **rows = trek_calloc((size_t)g->rows, sizeof *rows);
    for (int64_t r = 0; rows && r < g->rows; r++) {
        int64_t last = taken(g, r) > 0 ? taken(g, r) - 1 : 0;
        rows[r] = trek_select(trek_select(y, 0, r), 0, last);
    }
    trek_var *all = rows ? trek_stack(rows, (int)g->rows, 0) : NULL;
    trek_free(rows);
    return all;
}

static trek_status draw(generation *g, int64_t step)
{
    int64_t steps;
    bool uneven;
    trek_var *tokens = next_tokens(g, &steps, &uneven), *y = NULL;
    if (tokens && g->cache)
        y = trek_forward_cached_with(g->model, g->cache, &tokens, 1, uneven ? g->fresh : NULL, true);
    else if (tokens)
        y = trek_forward(g->model, tokens);
    trek_var *logits = y ? last_logits(g, y, steps) : NULL;
    if (!logits)
        return trek_error_status();
    trek_sample_opts sample = g->opts.sample;
    sample.step = (uint64_t)step;
    sample.seen = (const int64_t *const *)g->texts;
    sample.n_seen = g->sizes;
    return trek_sample_logits(logits, &sample, g->drawn);
}

static bool ends(const generation *g, int64_t r, int64_t token)
{
    bool over = false;
    for (int64_t k = 0; k < g->opts.n_eos; k++)
        over |= g->opts.eos[k] == token;
    return (g->opts.on_token && !g->opts.on_token(r, token, g->opts.arg)) || over;
}

/* Appends the drawn tokens to the rows that go on. Returns how many rows go on. */
static int64_t take_drawn(generation *g, int64_t *tokens, int64_t *counts)
{
    int64_t going = 0;
    for (int64_t r = 0; r < g->rows; r++) {
        g->fresh[r] = 0;
        if (g->ended[r])
            continue;
        g->texts[r][g->sizes[r]++] = tokens[r * g->most + counts[r]++] = g->drawn[r];
        g->ended[r] = ends(g, r, g->drawn[r]);
        g->fresh[r] = !g->ended[r];
        going += !g->ended[r];
    }
    return going;
}

trek_status trek_generate(trek_module *model, const int64_t *const *prompts, const int64_t *lengths, int64_t rows,
                          const trek_generate_opts *opts, int64_t *tokens, int64_t *counts)
{
    if (!model || !prompts || !lengths || !tokens || !counts)
        return trek_fail_missing("generate", !model ? "model" : !prompts ? "prompts" : !lengths ? "lengths" : !tokens ? "tokens"
                                 : "counts");
    generation g = { .model = model, .rows = rows };
    if (opts)
        g.opts = *opts;
    trek_status status = begin(&g, prompts, lengths);
    for (int64_t r = 0; status == TREK_OK && r < rows; r++)
        counts[r] = 0;
    for (int64_t step = 0, going = 1; step < g.most && going > 0 && status == TREK_OK; step++) {
        trek_scope scope = trek_scope_begin();
        trek_no_grad_begin();
        status = scope.depth > 0 ? draw(&g, step) : trek_error_status();
        trek_no_grad_end();
        trek_scope_end(scope);
        if (status == TREK_OK)
            going = take_drawn(&g, tokens, counts);
    }
    end(&g);
    return status;
}
