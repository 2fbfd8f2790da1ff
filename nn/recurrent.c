/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM, GRU and RNN with their layers and directions, and their cells. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "tensor/compound.h"
#include "tensor/debug.h"
#include "tensor/option_internal.h"

/* The weights are in PyTorch's order: weight_ih, weight_hh, bias_ih, bias_hh, weight_hr of each direction of each
 * layer. */
typedef struct recurrent_layer {
    trek_module base;
    trek_var **weights;              /* [layers directions each]; owned */
    int64_t in, hidden, out;         /* out: the features of h, which are the hidden ones or their projection */
    int layers, directions;
    bool batch_first, bias, cell, relu;
    double dropout;
} recurrent_layer;

static const trek_module_class lstm_class, gru_class, rnn_class, lstm_cell_class, gru_cell_class, rnn_cell_class;

static bool projected(const recurrent_layer *m) { return m->out != m->hidden; }
static int weights_each(const recurrent_layer *m) { return (m->bias ? 4 : 2) + projected(m); }
static int weight_count(const recurrent_layer *m) { return m->layers * m->directions * weights_each(m); }

static bool has_c(const recurrent_layer *m)
{
    return m->base.own->klass == &lstm_class || m->base.own->klass == &lstm_cell_class;
}

static bool is_rnn(const recurrent_layer *m) { return m->base.own->klass == &rnn_class || m->base.own->klass == &rnn_cell_class; }

/* --- an RNN: steps of ops ------------------------------------------------------------------- */

/* Returns where a row has ended, as [T, N, 1], or NULL on failure. */
static trek_var *ended(trek_var *x, trek_var *lengths)
{
    int64_t steps = trek_var_size(x, 0);
    char text[TREK_SHAPE_TEXT];
    if (trek_var_ndim(lengths) != 1 || trek_var_size(lengths, 0) != trek_var_size(x, 1))
        return trek_fail_null(TREK_ERR_SHAPE, "rnn: lengths: %s; must be [%" PRId64 "]",
                              trek_shape_format(trek_var_shape(lengths), text, sizeof text), trek_var_size(x, 1));
    trek_dtype dtype = trek_var_dtype(lengths);
    if (dtype != TREK_I64 && dtype != TREK_I32 && dtype != TREK_U8)
        return trek_fail_null(TREK_ERR_DTYPE, "rnn: lengths: dtype %s; must be an integer dtype", trek_dtype_name(dtype));
    trek_tensor *numbers = trek_tensor_arange(0, (double)steps + 1, 1, TREK_I64, trek_var_device(x));
    trek_var *times = numbers ? trek_var_from(numbers) : NULL;
    trek_var *own = times ? trek_index_select(times, 0, trek_to(lengths, trek_var_device(x))) : NULL; /* this checks the range */
    trek_var *past = trek_ge(trek_unsqueeze(trek_narrow(times, 0, 0, steps), 1), trek_unsqueeze(own, 0));
    return past ? trek_unsqueeze(past, 2) : NULL;
}

/* Returns h after one more step; `inputs` is the part that comes from the input. */
static trek_var *rnn_step(const recurrent_layer *m, trek_var *inputs, trek_var *const *p, trek_var *h)
{
    trek_var *sum = trek_add(inputs, trek_linear(h, p[1], p[3]));
    return m->relu ? trek_relu(sum) : trek_tanh(sum);
}

static trek_var *rnn_steps(const recurrent_layer *m, trek_var *inputs, trek_var *past, trek_var *const *p,
                           const trek_recurrent_opts *opts, trek_var *h, trek_var **parts, trek_var **hn)
{
    int64_t steps = trek_var_size(inputs, 0);
    for (int64_t k = 0; k < steps; k++) {
        int64_t t = opts->reverse ? steps - 1 - k : k;
        trek_var *next = rnn_step(m, trek_select(inputs, 0, t), p, h), *over = past ? trek_select(past, 0, t) : NULL;
        parts[t] = past ? trek_masked_fill(next, over, 0) : next;
        h = past ? trek_where(over, h, next) : next;
        if (!parts[t] || !h)
            return NULL;
    }
    if (hn)
        *hn = h;
    return steps > 0 ? trek_stack(parts, (int)steps, 0) : inputs;
}

static trek_tensor *data_of(const trek_var *var) { return var ? var->data : NULL; }

/* The counterpart of trek_gru. */
static trek_var *rnn(const recurrent_layer *m, trek_var *x, trek_var *const *p, const trek_recurrent_opts *opts, trek_var **hn)
{
    trek_compound_enter();
    trek_compound told = { .kind = TREK_COMPOUND_RNN, .reverse = opts->reverse, .relu = m->relu,
                           .inputs = { data_of(x), data_of(p[0]), data_of(p[1]), data_of(p[2]), data_of(p[3]), data_of(opts->h0),
                                       data_of(opts->lengths) } };
    trek_var *past = opts->lengths ? ended(x, opts->lengths) : NULL;
    if (opts->lengths && !past)
        return NULL;
    x = past ? trek_masked_fill(x, past, 0) : x; /* the values there may not be finite */
    trek_var *inputs = x ? trek_linear(x, p[0], p[2]) : NULL, *h = opts->h0;
    if (inputs && !h)
        h = trek_var_from(trek_tensor_zeros(trek_dims(trek_var_size(x, 1), m->hidden), trek_var_dtype(inputs),
                                            trek_var_device(x)));
    if (!inputs || !h)
        return NULL;
    trek_var **parts = trek_calloc((size_t)trek_var_size(x, 0) + 1, sizeof *parts);
    trek_var *y = parts ? rnn_steps(m, inputs, past, p, opts, h, parts, hn) : NULL;
    trek_free(parts);
    told.outputs[0] = data_of(y);
    told.outputs[1] = hn ? data_of(*hn) : NULL;
    if (y)
        trek_compound_leave(&told);
    return y;
}

/* --- one layer ---------------------------------------------------------------------------- */

/* One call: its inputs, and the results layer by layer. */
typedef struct recurrent_call {
    recurrent_layer *m;
    const char *name;
    bool single;                     /* x came without a batch dimension */
    int64_t rows;
    trek_var *x;                     /* [T, N, features], what the next layer reads */
    trek_var *lengths, *h0, *c0;     /* each may be NULL; states are [layers directions, N, H] */
    trek_var **hn, **cn;             /* [layers directions], each [N, H]; NULL if not asked for */
} recurrent_call;

/* Runs the direction with index k = layer directions + direction. */
static trek_var *run_direction(const recurrent_call *c, int k, trek_var *x)
{
    const recurrent_layer *m = c->m;
    int each = weights_each(m);
    trek_var *p[4] = { NULL }, **own = m->weights + (size_t)k * (size_t)each;
    for (int i = 0; i < (m->bias ? 4 : 2); i++)
        p[i] = own[i];
    trek_recurrent_opts opts = { .lengths = c->lengths, .reverse = k % m->directions == 1,
                                 .h0 = c->h0 ? trek_select(c->h0, 0, k) : NULL, .c0 = c->c0 ? trek_select(c->c0, 0, k) : NULL,
                                 .weight_hr = projected(m) ? own[each - 1] : NULL };
    if ((c->h0 && !opts.h0) || (c->c0 && !opts.c0))
        return NULL;
    trek_var **hn = c->hn ? &c->hn[k] : NULL, **cn = c->cn ? &c->cn[k] : NULL;
    if (is_rnn(m))
        return rnn(m, x, p, &opts, hn);
    return has_c(m) ? trek_lstm(x, p[0], p[1], p[2], p[3], &opts, hn, cn) : trek_gru(x, p[0], p[1], p[2], p[3], &opts, hn);
}

/* The dropout mask is keyed by samples, so the batch has to be at the dimension where x had it. */
static trek_var *drop(const recurrent_layer *m, trek_var *x)
{
    if (!m->base.own->training || m->dropout == 0)
        return x;
    if (!m->batch_first)
        return trek_dropout(x, m->dropout, true);
    return trek_transpose(trek_dropout(trek_transpose(x, 0, 1), m->dropout, true), 0, 1);
}

static trek_var *run_layers(recurrent_call *c)
{
    const recurrent_layer *m = c->m;
    for (int layer = 0; layer < m->layers && c->x; layer++) {
        trek_var *y[2] = { NULL }, *x = layer > 0 ? drop(m, c->x) : c->x;
        for (int d = 0; x && d < m->directions; d++)
            if (!(y[d] = run_direction(c, layer * m->directions + d, x)))
                return NULL;
        c->x = !x ? NULL : m->directions == 1 ? y[0] : trek_cat(y, 2, 2);
    }
    return c->x;
}

/* --- a call --------------------------------------------------------------------------------- */

static bool fits_state(const recurrent_call *c, const char *name, trek_var *state, int64_t size)
{
    const recurrent_layer *m = c->m;
    char got[TREK_SHAPE_TEXT], wanted[TREK_SHAPE_TEXT];
    trek_shape shape = trek_dims((int64_t)m->layers * m->directions, c->rows, size);
    if (m->cell)
        shape = c->single ? trek_dims(size) : trek_dims(c->rows, size);
    else if (c->single)
        shape = trek_dims(shape.sizes[0], size);
    if (trek_shape_equal(trek_var_shape(state), shape))
        return true;
    trek_fail(TREK_ERR_SHAPE, "%s: %s: %s; must be %s", c->name, name, trek_shape_format(trek_var_shape(state), got, sizeof got),
              trek_shape_format(shape, wanted, sizeof wanted));
    return false;
}

/* Returns the state as [layers directions, N, H], or NULL for NULL. */
static trek_var *whole_state(const recurrent_call *c, trek_var *state)
{
    if (state && c->single)
        state = trek_unsqueeze(state, -2);
    return state && c->m->cell ? trek_unsqueeze(state, 0) : state;
}

/* x of a cell is [N, in]; otherwise it is [N, T, in] or [T, N, in], depending on the option. Without a batch it is
 * [in] or [T, in]. */
static bool begin_call(recurrent_call *c, trek_var *h0, trek_var *c0)
{
    const recurrent_layer *m = c->m;
    char text[TREK_SHAPE_TEXT];
    const int ndim = trek_var_ndim(c->x), most = m->cell ? 2 : 3, batch = m->cell || m->batch_first ? 0 : 1;
    c->single = ndim == most - 1;
    if ((ndim != most && !c->single) || trek_var_size(c->x, ndim - 1) != m->in) {
        trek_fail(TREK_ERR_SHAPE, "%s: input: %s; must be %s%" PRId64 "], or without N", c->name,
                  trek_shape_format(trek_var_shape(c->x), text, sizeof text),
                  m->cell          ? "[N, "
                  : m->batch_first ? "[N, T, "
                                   : "[T, N, ",
                  m->in);
        return false;
    }
    if (c->lengths && (c->single || m->cell)) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: lengths: given, but the input is not a batch of sequences", c->name);
        return false;
    }
    c->rows = c->single ? 1 : trek_var_size(c->x, batch);
    if ((h0 && !fits_state(c, "h0", h0, m->out)) || (c0 && !fits_state(c, "c0", c0, m->hidden)))
        return false;
    c->h0 = whole_state(c, h0);
    c->c0 = whole_state(c, c0);
    if (c->single)
        c->x = trek_unsqueeze(c->x, batch);
    if (m->cell)
        c->x = trek_unsqueeze(c->x, 0);
    else if (m->batch_first)
        c->x = trek_transpose(c->x, 0, 1);
    return c->x && (!h0 || c->h0) && (!c0 || c->c0);
}

/* Returns y in the layout of the caller's x. */
static trek_var *shaped_result(const recurrent_call *c, trek_var *y)
{
    if (y && !c->m->cell && c->m->batch_first)
        y = trek_transpose(y, 0, 1);
    if (y && c->m->cell)
        y = trek_squeeze(y, 0);
    return y && c->single ? trek_squeeze(y, c->m->cell || c->m->batch_first ? 0 : 1) : y;
}

/* Returns the parts, one for each layer and direction, in the layout of the caller's states. */
static trek_var *shaped_state(const recurrent_call *c, trek_var **parts)
{
    if (c->m->cell)
        return c->single ? trek_squeeze(parts[0], 0) : parts[0];
    trek_var *state = trek_stack(parts, c->m->layers * c->m->directions, 0);
    return state && c->single ? trek_squeeze(state, 1) : state;
}

/* A whole forward. *hn and *cn are set if they are asked for. */
static trek_var *run(recurrent_call *c, trek_var *h0, trek_var *c0, trek_var **hn, trek_var **cn)
{
    int places = c->m->layers * c->m->directions;
    trek_var *y = NULL, **parts = trek_calloc((size_t)(2 * places), sizeof *parts);
    if (!parts)
        return NULL;
    c->hn = hn ? parts : NULL;
    c->cn = cn ? parts + places : NULL;
    if (begin_call(c, h0, c0))
        y = shaped_result(c, run_layers(c));
    if (y && hn && !(*hn = shaped_state(c, parts)))
        y = NULL;
    if (y && cn && !(*cn = shaped_state(c, parts + places)))
        y = NULL;
    trek_free(parts);
    return y;
}

static recurrent_call call_of(trek_module *self, trek_var *x)
{
    return (recurrent_call){ .m = (recurrent_layer *)self, .name = self->own->klass->name, .x = x };
}

static trek_var *recurrent_forward(trek_module *self, trek_var *x)
{
    recurrent_call c = call_of(self, x);
    return run(&c, NULL, NULL, NULL, NULL);
}

/* The inputs are x, lengths (of a sequence), h0 and c0 (of an LSTM), each NULL if absent. The results are y, hn and
 * cn. A cell's y is its hn. */
static trek_status recurrent_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    recurrent_call c = call_of(self, inputs[0]);
    int first = c.m->cell ? 1 : 2, most = first + 1 + has_c(c.m), hn = c.m->cell ? 0 : 1, cn = hn + 1;
    if (n > most)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: inputs: %d; must be at most %d", c.name, n, most);
    if (!c.m->cell && n > 1)
        c.lengths = inputs[1];
    results[0] = run(&c, n > first ? inputs[first] : NULL, n > first + 1 ? inputs[first + 1] : NULL,
                     hn > 0 && count > hn ? &results[hn] : NULL, has_c(c.m) && count > cn ? &results[cn] : NULL);
    return results[0] ? TREK_OK : trek_error_status();
}

/* Returns the requested ones of y, hn and cn in the caller's scope. */
static trek_var *forward_of(trek_module *self, const trek_module_class *klass, trek_var *const *inputs, int n, trek_var **hn,
                            trek_var **cn)
{
    trek_var *results[3] = { NULL };
    int at_hn = 1, at_cn = klass == &lstm_class ? 2 : 1;
    if (hn)
        *hn = NULL;
    if (cn)
        *cn = NULL;
    if (self && !trek_gone(self, klass->name, "the module") && self->own->klass != klass)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: module: it is a %s; must be of the kind that the function is named after",
                              klass->name, self->own->klass->name);
    if (trek_forward_results(self, inputs, n, results, cn ? at_cn + 1 : hn ? at_hn + 1 : 1) != TREK_OK)
        return NULL;
    if (hn)
        *hn = results[at_hn];
    if (cn)
        *cn = results[at_cn];
    return results[0];
}

trek_var *trek_nn_lstm_forward(trek_module *lstm, trek_var *x, trek_var *lengths, trek_var *h0, trek_var *c0, trek_var **hn,
                               trek_var **cn)
{
    return forward_of(lstm, &lstm_class, (trek_var *[]){ x, lengths, h0, c0 }, 4, hn, cn);
}

trek_var *trek_nn_gru_forward(trek_module *gru, trek_var *x, trek_var *lengths, trek_var *h0, trek_var **hn)
{
    return forward_of(gru, &gru_class, (trek_var *[]){ x, lengths, h0 }, 3, hn, NULL);
}

trek_var *trek_nn_rnn_forward(trek_module *layer, trek_var *x, trek_var *lengths, trek_var *h0, trek_var **hn)
{
    return forward_of(layer, &rnn_class, (trek_var *[]){ x, lengths, h0 }, 3, hn, NULL);
}

trek_var *trek_nn_lstm_cell_forward(trek_module *cell, trek_var *x, trek_var *h, trek_var *c, trek_var **cn)
{
    return forward_of(cell, &lstm_cell_class, (trek_var *[]){ x, h, c }, 3, NULL, cn);
}

trek_var *trek_nn_gru_cell_forward(trek_module *cell, trek_var *x, trek_var *h)
{
    return forward_of(cell, &gru_cell_class, (trek_var *[]){ x, h }, 2, NULL, NULL);
}

trek_var *trek_nn_rnn_cell_forward(trek_module *cell, trek_var *x, trek_var *h)
{
    return forward_of(cell, &rnn_cell_class, (trek_var *[]){ x, h }, 2, NULL, NULL);
}

/* --- classes ----------------------------------------------------------------------------------- */

/* As in PyTorch, all weights are U(-b, b) with b = 1 / sqrt(hidden). */
static trek_status recurrent_reset(trek_module *self)
{
    const recurrent_layer *m = (const recurrent_layer *)self;
    double bound = 1 / sqrt((double)m->hidden);
    trek_status status = TREK_OK;
    for (int k = 0; k < weight_count(m) && status == TREK_OK; k++)
        status = trek_init_uniform(m->weights[k], -bound, bound);
    return status;
}

static void recurrent_free(trek_module *self) { trek_free(((recurrent_layer *)self)->weights); }

static void recurrent_describe(const trek_module *self, char *text, size_t size)
{
    const recurrent_layer *m = (const recurrent_layer *)self;
    char layers[32] = "", dropout[64] = "", number[32], projection[48] = "";
    if (projected(m))
        snprintf(projection, sizeof projection, ", projected to %" PRId64, m->out);
    if (m->layers > 1)
        snprintf(layers, sizeof layers, ", layers %d", m->layers);
    if (m->dropout > 0)
        snprintf(dropout, sizeof dropout, ", dropout %s", trek_layer_number(m->dropout, number));
    snprintf(text, size, "%" PRId64 ", %" PRId64 "%s%s%s%s%s%s%s", m->in, m->hidden, projection, layers,
             m->bias ? "" : ", no bias",
             m->batch_first ? ", batch first" : "", dropout, m->directions > 1 ? ", bidirectional" : "", m->relu ? ", relu" : "");
}

static const char *const lstm_inputs[] = { "lengths", "h0", "c0", NULL }, *const gru_inputs[] = { "lengths", "h0", NULL };
static const char *const lstm_cell_inputs[] = { "h", "c", NULL }, *const gru_cell_inputs[] = { "h", NULL };
static const char *const rnn_inputs[] = { "lengths", "h0", NULL }, *const rnn_cell_inputs[] = { "h", NULL };
static const char *const lstm_results[] = { "output", "hn", "cn", NULL }, *const gru_results[] = { "output", "hn", NULL };
static const char *const rnn_results[] = { "output", "hn", NULL }, *const rnn_cell_results[] = { "h", NULL };
static const char *const lstm_cell_results[] = { "h", "c", NULL }, *const gru_cell_results[] = { "h", NULL };

#define RECURRENT_CLASS(kind)                                                                                       \
    static const trek_module_class kind##_class = {                                                                 \
        .name = #kind, .size = sizeof(recurrent_layer), .forward = recurrent_forward,                               \
        .forward_results = recurrent_results, .free = recurrent_free, .reset = recurrent_reset,                     \
        .describe = recurrent_describe,                                                                             \
        .input_names = kind##_inputs, .result_names = kind##_results, .optional_inputs = true,                      \
    }
RECURRENT_CLASS(lstm);
RECURRENT_CLASS(gru);
RECURRENT_CLASS(rnn);
RECURRENT_CLASS(rnn_cell);
RECURRENT_CLASS(lstm_cell);
RECURRENT_CLASS(gru_cell);

/* --- constructors -------------------------------------------------------------------------------- */

/* Sequences and cells have the same options. A cell is one step and reads only in, hidden, no_bias, dtype and device. */
static trek_status check_options(const char *name, const trek_lstm_opts *opts)
{
    if (!opts)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", name);
    if (trek_layer_positive(name, "in", opts->in) != TREK_OK || trek_layer_positive(name, "hidden", opts->hidden) != TREK_OK)
        return trek_error_status();
    if (opts->proj_size != 0 && (opts->proj_size < 0 || opts->proj_size >= opts->hidden || strcmp(name, "lstm") != 0))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .proj_size: %" PRId64 "; must be inside [1, hidden), and for an LSTM only",
                         name, opts->proj_size);
    if (opts->layers < 0 || opts->layers > 1 << 16)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .layers: %" PRId64 "; must be inside [1, 65536]", name, opts->layers);
    double dropout = trek_option(opts->dropout, 0);
    if (!(dropout >= 0 && dropout <= 1)) {
        char number[32];
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .dropout: %s; must be inside [0, 1]", name,
                         trek_layer_number(dropout, number));
    }
    return TREK_OK;
}

/* Adds the parameters of one direction of one layer, which reads `in` features. The suffix is "_l0_reverse" and the
 * like, and "" for a cell. */
static void add_params(recurrent_layer *m, const trek_lstm_opts *opts, int64_t in, const char *suffix)
{
    static const char *const names[5] = { "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr" };
    const int64_t gates = (has_c(m) ? 4 : is_rnn(m) ? 1 : 3) * m->hidden;
    for (int k = 0; k < 4 + projected(m); k++) {
        char name[64];
        if (!m->bias && (k == 2 || k == 3))
            continue;
        snprintf(name, sizeof name, "%s%s", names[k], suffix);
        trek_shape shape = k == 0 ? trek_dims(gates, in) : k == 1 ? trek_dims(gates, m->out)
                         : k < 4 ? trek_dims(gates) : trek_dims(m->out, m->hidden);
        int at = m->base.own->n_params;
        if (!trek_module_param(&m->base, name, TREK_NO_FIELD, trek_tensor_empty(shape, opts->dtype, opts->device)))
            return;
        m->base.own->params[at].place = &m->weights[at];
        m->weights[at] = m->base.own->params[at].var;
    }
}

static trek_module *make(const trek_module_class *klass, const trek_lstm_opts *opts, bool cell)
{
    if (check_options(klass->name, opts) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(klass);
    if (!base)
        return NULL;
    recurrent_layer *m = (recurrent_layer *)base;
    m->in = opts->in;
    m->hidden = opts->hidden;
    m->out = opts->proj_size > 0 ? opts->proj_size : opts->hidden;
    m->layers = opts->layers > 0 ? (int)opts->layers : 1;
    m->directions = opts->bidirectional ? 2 : 1;
    m->batch_first = opts->batch_first;
    m->bias = !opts->no_bias;
    m->dropout = trek_option(opts->dropout, 0);
    m->cell = cell;
    m->weights = trek_calloc((size_t)weight_count(m), sizeof *m->weights);
    if (!m->weights) {
        trek_module_free(&base);
        return NULL;
    }
    for (int k = 0; k < m->layers * m->directions; k++) {
        char suffix[32] = "";
        if (!cell)
            snprintf(suffix, sizeof suffix, "_l%d%s", k / m->directions, k % m->directions ? "_reverse" : "");
        add_params(m, opts, k < m->directions ? m->in : m->directions * m->out, suffix);
    }
    return trek_layer_finish(base);
}

trek_module *trek_nn_lstm_with(const trek_lstm_opts *opts) { return make(&lstm_class, opts, false); }
trek_module *trek_nn_gru_with(const trek_gru_opts *opts) { return make(&gru_class, opts, false); }

static trek_module *with_relu(trek_module *made, bool relu)
{
    if (made)
        ((recurrent_layer *)made)->relu = relu;
    return made;
}

trek_module *trek_nn_rnn_with(const trek_rnn_opts *o)
{
    if (!o)
        return trek_fail_null(TREK_ERR_ARGUMENT, "rnn: options: NULL; they must be given");
    trek_lstm_opts opts = { .in = o->in, .hidden = o->hidden, .layers = o->layers, .no_bias = o->no_bias,
                            .batch_first = o->batch_first, .dropout = o->dropout, .bidirectional = o->bidirectional,
                            .dtype = o->dtype, .device = o->device };
    return with_relu(make(&rnn_class, &opts, false), o->relu);
}

trek_module *trek_nn_rnn(int64_t in, int64_t hidden, trek_device device)
{
    return trek_nn_rnn_with(&(trek_rnn_opts){ .in = in, .hidden = hidden, .device = device });
}

trek_module *trek_nn_lstm(int64_t in, int64_t hidden, trek_device device)
{
    return trek_nn_lstm_with(&(trek_lstm_opts){ .in = in, .hidden = hidden, .device = device });
}

trek_module *trek_nn_gru(int64_t in, int64_t hidden, trek_device device)
{
    return trek_nn_gru_with(&(trek_gru_opts){ .in = in, .hidden = hidden, .device = device });
}

static trek_module *make_cell(const trek_module_class *klass, const trek_lstm_cell_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", klass->name);
    return make(klass, &(trek_lstm_opts){ .in = opts->in, .hidden = opts->hidden, .no_bias = opts->no_bias, .dtype = opts->dtype,
                                          .device = opts->device }, true);
}

trek_module *trek_nn_lstm_cell_with(const trek_lstm_cell_opts *opts) { return make_cell(&lstm_cell_class, opts); }
trek_module *trek_nn_gru_cell_with(const trek_gru_cell_opts *opts) { return make_cell(&gru_cell_class, opts); }

trek_module *trek_nn_rnn_cell_with(const trek_rnn_cell_opts *o)
{
    if (!o)
        return trek_fail_null(TREK_ERR_ARGUMENT, "rnn_cell: options: NULL; they must be given");
    return with_relu(make_cell(&rnn_cell_class, &(trek_lstm_cell_opts){ o->in, o->hidden, o->no_bias, o->dtype, o->device }),
                     o->relu);
}

trek_module *trek_nn_rnn_cell(int64_t in, int64_t hidden, trek_device device)
{
    return trek_nn_rnn_cell_with(&(trek_rnn_cell_opts){ .in = in, .hidden = hidden, .device = device });
}

trek_module *trek_nn_lstm_cell(int64_t in, int64_t hidden, trek_device device)
{
    return trek_nn_lstm_cell_with(&(trek_lstm_cell_opts){ .in = in, .hidden = hidden, .device = device });
}

trek_module *trek_nn_gru_cell(int64_t in, int64_t hidden, trek_device device)
{
    return trek_nn_gru_cell_with(&(trek_gru_cell_opts){ .in = in, .hidden = hidden, .device = device });
}
