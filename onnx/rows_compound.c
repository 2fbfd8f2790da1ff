/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that are several ops in trek and one node in ONNX: convolutions and pools of one and three dimensions. */
#include "autograd/spatial.h"
#include "onnx/onnx_internal.h"

/* Returns its numbers, which must be the same in all runs. */
static trek_compound numbers(trek_onnx *x)
{
    trek_compound c = trek_onnx_at(x, 0)->compound;
    for (int r = 1; r < x->n_runs; r++) {
        const trek_compound *other = &trek_onnx_at(x, r)->compound;
        bool same = other->groups == c.groups && other->counts_padding == c.counts_padding && other->reverse == c.reverse;
        for (int d = 0; d < c.dims; d++)
            same = same && other->kernel[d] == c.kernel[d] && other->stride[d] == c.stride[d] &&
                other->padding[d] == c.padding[d] && other->dilation[d] == c.dilation[d];
        if (!same)
            trek_onnx_refuse(x, "its numbers depend on the inputs' sizes");
    }
    return c;
}

static void attributes(trek_onnx *x, const trek_compound *c, const int64_t *kernel, bool dilates)
{
    int64_t pads[6];
    for (int d = 0; d < c->dims; d++)
        pads[d] = pads[c->dims + d] = c->padding[d];
    trek_onnx_attr_ints(x, "kernel_shape", c->dims, kernel);
    trek_onnx_attr_ints(x, "strides", c->dims, c->stride);
    trek_onnx_attr_ints(x, "pads", 2 * c->dims, pads);
    if (dilates)
        trek_onnx_attr_ints(x, "dilations", c->dims, c->dilation);
}

/* Returns how many elements a transposed convolution's result has beyond what its kernel reaches. */
static int64_t output_padding(trek_onnx *x, const trek_compound *c, const int64_t *kernel, int d)
{
    int64_t more[TREK_ONNX_RUNS];
    for (int r = 0; r < x->n_runs; r++) {
        int64_t in = trek_onnx_seen(x, r, trek_onnx_input_value(x, 0))->sizes[2 + d];
        int64_t out = trek_onnx_seen(x, r, trek_onnx_at(x, 0)->outputs[0])->sizes[2 + d];
        more[r] = out - ((in - 1) * c->stride[d] - 2 * c->padding[d] + c->dilation[d] * (kernel[d] - 1) + 1);
    }
    if (!trek_onnx_same(x, more))
        trek_onnx_refuse(x, "its output padding depends on the inputs' sizes");
    return more[0];
}

static void conv(trek_onnx *x, const char **outs)
{
    trek_compound c = numbers(x);
    int64_t kernel[3], more[3];
    for (int d = 0; d < c.dims; d++)
        kernel[d] = trek_onnx_fixed(x, 1, 2 + d);
    outs[0] = trek_onnx_3(x, x->type, trek_onnx_in(x, 0), trek_onnx_in(x, 1), trek_onnx_in(x, 2));
    attributes(x, &c, kernel, true);
    trek_onnx_attr_int(x, "group", c.groups);
    if (trek_onnx_is(x, "Conv"))
        return;
    for (int d = 0; d < c.dims; d++)
        more[d] = output_padding(x, &c, kernel, d);
    trek_onnx_attr_ints(x, "output_padding", c.dims, more);
}

static void pool(trek_onnx *x, const char **outs)
{
    trek_compound c = numbers(x);
    bool means = trek_onnx_is(x, "AveragePool");
    outs[0] = trek_onnx_1(x, x->type, trek_onnx_in(x, 0));
    attributes(x, &c, c.kernel, !means);
    if (means)
        trek_onnx_attr_int(x, "count_include_pad", c.counts_padding);
}

static void pad(trek_onnx *x, const char **outs)
{
    static const char *const modes[] = { [TREK_PAD_MODE_CONSTANT] = "constant", [TREK_PAD_MODE_REFLECT] = "reflect",
                                         [TREK_PAD_MODE_REPLICATE] = "edge" };
    const trek_compound *c = &trek_onnx_at(x, 0)->compound;
    const trek_onnx_value *in = trek_onnx_in_seen(x, 0);
    const char *ends[2];
    int64_t all[2 * TREK_MAX_DIMS], sizes[TREK_ONNX_RUNS];
    bool open = false;
    for (int k = 0; k < 2 * in->ndim; k++) {
        for (int r = 0; r < x->n_runs; r++)
            sizes[r] = trek_onnx_at(x, r)->compound.pads[k];
        open = open || !trek_onnx_same(x, sizes);
        all[k / 2 + (k % 2 ? in->ndim : 0)] = sizes[0];
    }
    const char *pads = trek_onnx_ints(x, 2 * in->ndim, all);
    for (int end = 0; open && end < 2; end++) {
        int64_t each[TREK_MAX_DIMS][TREK_ONNX_RUNS];
        for (int d = 0; d < in->ndim; d++)
            for (int r = 0; r < x->n_runs; r++)
                each[d][r] = trek_onnx_at(x, r)->compound.pads[2 * d + end];
        ends[end] = trek_onnx_shape(x, in->ndim, each);
    }
    if (open) {
        pads = trek_onnx_node(x, "Concat", 2, ends);
        trek_onnx_attr_int(x, "axis", 0);
    }
    bool constant = c->pad_mode == TREK_PAD_MODE_CONSTANT;
    outs[0] = trek_onnx_3(x, "Pad", trek_onnx_in(x, 0), pads, constant ? trek_onnx_scalar(x, in->dtype, c->value) : NULL);
    trek_onnx_attr_string(x, "mode", modes[c->pad_mode]);
}

/* The inputs are x, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths. */
static void rnn(trek_onnx *x, const char **outs)
{
    trek_compound c = numbers(x);
    const char *both = NULL, *first = trek_onnx_int(x, 0);
    const char *h0 = trek_onnx_has(x, 5) ? trek_onnx_2(x, "Unsqueeze", trek_onnx_in(x, 5), first) : NULL;
    const char *weight = trek_onnx_2(x, "Unsqueeze", trek_onnx_in(x, 1), first);
    const char *own = trek_onnx_2(x, "Unsqueeze", trek_onnx_in(x, 2), first);
    if (trek_onnx_has(x, 3) && trek_onnx_has(x, 4)) {
        both = trek_onnx_node(x, "Concat", 2, (const char *[]){ trek_onnx_in(x, 3), trek_onnx_in(x, 4) });
        trek_onnx_attr_int(x, "axis", 0);
        both = trek_onnx_2(x, "Unsqueeze", both, first);
    }
    const char *in[6] = { trek_onnx_in(x, 0), weight, own, both, trek_onnx_lengths(x, 6), h0 };
    trek_onnx_recurrence(x, "RNN", trek_onnx_fixed(x, 2, 1), c.reverse, 6, in);
    trek_onnx_attr_strings(x, "activations", c.relu ? "Relu" : "Tanh");
    const char *y = trek_onnx_first(x), *h = trek_onnx_more(x);
    outs[0] = trek_onnx_2(x, "Squeeze", y, trek_onnx_int(x, 1));
    outs[1] = trek_onnx_2(x, "Squeeze", h, first);
}

const trek_onnx_row trek_onnx_rows_compound[] = {
    { TREK_OP_COUNT + TREK_COMPOUND_PAD, pad, NULL }, { TREK_OP_COUNT + TREK_COMPOUND_RNN, rnn, NULL },
    { TREK_OP_COUNT + TREK_COMPOUND_CONV, conv, "Conv" },
    { TREK_OP_COUNT + TREK_COMPOUND_CONV_TRANSPOSE, conv, "ConvTranspose" },
    { TREK_OP_COUNT + TREK_COMPOUND_MAX_POOL, pool, "MaxPool" },
    { TREK_OP_COUNT + TREK_COMPOUND_AVG_POOL, pool, "AveragePool" },
    { 0, NULL, NULL },
};
