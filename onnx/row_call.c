/* SPDX-License-Identifier: Apache-2.0 */
/* What a row sees of the call that it writes. */
#include "onnx/onnx_internal.h"

#include <math.h>
#include <string.h>

const trek_onnx_call *trek_onnx_at(const trek_onnx *x, int run) { return &x->runs[run].calls[x->call]; }

bool trek_onnx_is(const trek_onnx *x, const char *type) { return strcmp(x->type, type) == 0; }

int trek_onnx_input_value(const trek_onnx *x, int k)
{
    const trek_onnx_call *call = trek_onnx_at(x, 0);
    return k < call->n_inputs ? x->runs[0].inputs[call->first_input + k] : -1;
}

bool trek_onnx_has(const trek_onnx *x, int k) { return trek_onnx_input_value(x, k) >= 0; }

const char *trek_onnx_in(trek_onnx *x, int k)
{
    int value = trek_onnx_input_value(x, k);
    return value >= 0 ? x->names[value] : NULL;
}

const trek_onnx_value *trek_onnx_seen(const trek_onnx *x, int run, int value) { return &x->runs[run].values[value]; }

const trek_onnx_value *trek_onnx_in_seen(const trek_onnx *x, int k) { return trek_onnx_seen(x, 0, trek_onnx_input_value(x, k)); }

const trek_onnx_value *trek_onnx_out_seen(const trek_onnx *x, int k)
{
    return trek_onnx_seen(x, 0, trek_onnx_at(x, 0)->outputs[k]);
}

bool trek_onnx_wanted(const trek_onnx *x, int k)
{
    int value = trek_onnx_at(x, 0)->outputs[k];
    return value >= 0 && x->wanted[value];
}

bool trek_onnx_same(const trek_onnx *x, const int64_t *sizes)
{
    for (int r = 1; r < x->n_runs; r++)
        if (sizes[r] != sizes[0])
            return false;
    return true;
}

int64_t trek_onnx_i(trek_onnx *x, int k)
{
    int64_t value = trek_onnx_at(x, 0)->attrs.i[k];
    for (int r = 1; r < x->n_runs; r++)
        if (trek_onnx_at(x, r)->attrs.i[k] != value)
            trek_onnx_refuse(x, "one of its numbers depends on the inputs' sizes or values: %lld, then %lld", (long long)value,
                             (long long)trek_onnx_at(x, r)->attrs.i[k]);
    return value;
}

double trek_onnx_f(trek_onnx *x, int k)
{
    double value = trek_onnx_at(x, 0)->attrs.f[k];
    for (int r = 1; r < x->n_runs; r++)
        if (trek_onnx_at(x, r)->attrs.f[k] != value && !(isnan(value) && isnan(trek_onnx_at(x, r)->attrs.f[k])))
            trek_onnx_refuse(x, "one of its numbers depends on the inputs' sizes or values: %g, then %g", value,
                             trek_onnx_at(x, r)->attrs.f[k]);
    return value;
}

bool trek_onnx_sizes(const trek_onnx *x, int k, int d, int64_t *sizes)
{
    for (int r = 0; r < x->n_runs; r++)
        sizes[r] = trek_onnx_seen(x, r, trek_onnx_input_value(x, k))->sizes[d];
    return trek_onnx_same(x, sizes);
}

int64_t trek_onnx_fixed(trek_onnx *x, int k, int d)
{
    int64_t sizes[TREK_ONNX_RUNS] = { 0 };
    if (!trek_onnx_sizes(x, k, d, sizes))
        trek_onnx_refuse(x, "dimension %d of its input must not be open", d);
    return sizes[0];
}
