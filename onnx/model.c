/* SPDX-License-Identifier: Apache-2.0 */
/* The model as it grows: nodes and constants, in memory that is freed as a whole. */
#include "onnx/onnx_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <onnx.pb-c.h>

#include "tensor/pages.h"

/* --- memory ----------------------------------------------------------------------------- */

void *trek_onnx_alloc(trek_onnx *x, size_t bytes)
{
    bytes = (bytes + 15) / 16 * 16;
    trek_onnx_chunk *c = x->chunks;
    if (!c || c->size - c->used < bytes) {
        size_t size = bytes > 65536 ? bytes : 65536;
        c = trek_calloc(1, 16 + sizeof *c + size);
        if (!c) {
            x->failed = true;
            return NULL;
        }
        *c = (trek_onnx_chunk){ x->chunks, 0, size };
        x->chunks = c;
    }
    char *memory = (char *)c + (sizeof *c + 15) / 16 * 16 + c->used;
    c->used += bytes;
    return memory;
}

static char *text_of(trek_onnx *x, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = trek_onnx_alloc(x, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

char *trek_onnx_text(trek_onnx *x, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text_of(x, text);
}

void trek_onnx_refuse(trek_onnx *x, const char *format, ...)
{
    if (!trek_onnx_fine(x))
        return;
    int named = x->call >= 0 ? snprintf(x->problem, sizeof x->problem, "%s: ", x->runs[0].calls[x->call].op->name) : 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(x->problem + named, sizeof x->problem - (size_t)named, format, arguments);
    va_end(arguments);
    x->problem_call = x->call;
}

bool trek_onnx_fine(const trek_onnx *x) { return !x->failed && !x->problem[0]; }

/* --- nodes -------------------------------------------------------------------------------- */

/* Returns a unique name: names of parameters have no leading slash. */
static char *new_name(trek_onnx *x, const char *what) { return trek_onnx_text(x, "/%s_%d", what, x->numbers++); }

static const char *made(const char *name) { return name ? name : ""; }

static TrekOnnx__NodeProto *last_node(trek_onnx *x) { return x->n_nodes > 0 ? x->nodes[x->n_nodes - 1] : NULL; }

const char *trek_onnx_node(trek_onnx *x, const char *type, int n, const char *const *inputs)
{
    if (!*type) {
        trek_onnx_refuse(x, "its row names no ONNX op");
        return "";
    }
    if (trek_array_grow(&x->nodes, &x->cap_nodes, x->n_nodes + 1, sizeof(TrekOnnx__NodeProto *)) != TREK_OK)
        x->failed = true;
    while (n > 0 && !inputs[n - 1])
        n--;
    TrekOnnx__NodeProto *node = trek_onnx_alloc(x, sizeof *node);
    char **in = trek_onnx_alloc(x, (size_t)(n + 1) * sizeof *in), **out = trek_onnx_alloc(x, 4 * sizeof *out);
    char *name = new_name(x, type);
    if (x->failed)
        return "";
    trek_onnx__node_proto__init(node);
    for (int k = 0; k < n; k++)
        in[k] = (char *)(uintptr_t)(inputs[k] ? inputs[k] : "");
    out[0] = name;
    node->n_input = (size_t)n;
    node->input = in;
    node->n_output = 1;
    node->output = out;
    node->name = name;
    node->op_type = text_of(x, type);
    x->nodes[x->n_nodes++] = node;
    return name;
}

const char *trek_onnx_1(trek_onnx *x, const char *type, const char *a)
{
    return trek_onnx_node(x, type, 1, (const char *[]){ a });
}
const char *trek_onnx_2(trek_onnx *x, const char *type, const char *a, const char *b)
{
    return trek_onnx_node(x, type, 2, (const char *[]){ a, b });
}
const char *trek_onnx_3(trek_onnx *x, const char *type, const char *a, const char *b, const char *c)
{
    return trek_onnx_node(x, type, 3, (const char *[]){ a, b, c });
}

const char *trek_onnx_first(trek_onnx *x)
{
    const TrekOnnx__NodeProto *node = last_node(x);
    return node ? node->output[0] : "";
}

const char *trek_onnx_more(trek_onnx *x)
{
    TrekOnnx__NodeProto *node = last_node(x);
    char *name = node && trek_onnx_fine(x) ? trek_onnx_text(x, "%s.%zu", node->name, node->n_output) : NULL;
    if (name)
        node->output[node->n_output++] = name;
    return made(name);
}

void trek_onnx_rename(trek_onnx *x, int first, const char *from, const char *name)
{
    for (int k = first; k < x->n_nodes; k++) {
        TrekOnnx__NodeProto *node = x->nodes[k];
        for (size_t j = 0; j < node->n_input; j++)
            if (strcmp(node->input[j], from) == 0)
                node->input[j] = (char *)(uintptr_t)name;
        for (size_t j = 0; j < node->n_output; j++)
            if (strcmp(node->output[j], from) == 0)
                node->output[j] = (char *)(uintptr_t)name;
    }
}

bool trek_onnx_makes(const trek_onnx *x, int k, const char *name)
{
    for (size_t j = 0; j < x->nodes[k]->n_output; j++)
        if (strcmp(x->nodes[k]->output[j], name) == 0)
            return true;
    return false;
}

bool trek_onnx_has_constant(const trek_onnx *x, const char *name)
{
    for (int k = 0; k < x->n_tensors; k++)
        if (strcmp(x->tensors[k]->name, name) == 0)
            return true;
    return false;
}

/* --- attributes ------------------------------------------------------------------------------ */

enum { ATTR_FLOAT = 1, ATTR_INT = 2, ATTR_STRING = 3, ATTR_TENSOR = 4, ATTR_INTS = 7, ATTR_STRINGS = 8, MOST_ATTRS = 12 };

static TrekOnnx__AttributeProto *attribute(trek_onnx *x, const char *name, int type)
{
    TrekOnnx__NodeProto *node = last_node(x);
    TrekOnnx__AttributeProto *a = trek_onnx_alloc(x, sizeof *a);
    if (!node || !a || x->failed)
        return NULL;
    if (!node->attribute && !(node->attribute = trek_onnx_alloc(x, MOST_ATTRS * sizeof(TrekOnnx__AttributeProto *))))
        return NULL;
    trek_onnx__attribute_proto__init(a);
    a->name = text_of(x, name);
    a->has_type = 1;
    a->type = type;
    node->attribute[node->n_attribute++] = a;
    return a;
}

void trek_onnx_attr_int(trek_onnx *x, const char *name, int64_t value)
{
    TrekOnnx__AttributeProto *a = attribute(x, name, ATTR_INT);
    if (a) {
        a->has_i = 1;
        a->i = value;
    }
}

void trek_onnx_attr_ints(trek_onnx *x, const char *name, int n, const int64_t *values)
{
    TrekOnnx__AttributeProto *a = attribute(x, name, ATTR_INTS);
    int64_t *copy = a ? trek_onnx_alloc(x, (size_t)(n + 1) * sizeof *copy) : NULL;
    if (!copy)
        return;
    memcpy(copy, values, (size_t)n * sizeof *copy);
    a->n_ints = (size_t)n;
    a->ints = copy;
}

void trek_onnx_attr_float(trek_onnx *x, const char *name, double value)
{
    TrekOnnx__AttributeProto *a = attribute(x, name, ATTR_FLOAT);
    if (a) {
        a->has_f = 1;
        a->f = (float)value;
    }
}

void trek_onnx_attr_string(trek_onnx *x, const char *name, const char *value)
{
    TrekOnnx__AttributeProto *a = attribute(x, name, ATTR_STRING);
    if (a) {
        a->has_s = 1;
        a->s = (ProtobufCBinaryData){ strlen(value), (uint8_t *)text_of(x, value) };
    }
}

void trek_onnx_attr_strings(trek_onnx *x, const char *name, const char *value)
{
    TrekOnnx__AttributeProto *a = attribute(x, name, ATTR_STRINGS);
    ProtobufCBinaryData *one = a ? trek_onnx_alloc(x, sizeof *one) : NULL;
    if (!one)
        return;
    *one = (ProtobufCBinaryData){ strlen(value), (uint8_t *)text_of(x, value) };
    a->n_strings = 1;
    a->strings = one;
}

/* --- constants --------------------------------------------------------------------------------- */

int trek_onnx_dtype(trek_dtype dtype)
{
    static const int numbers[TREK_DTYPE_COUNT] = { [TREK_F32] = 1, [TREK_U8] = 2,   [TREK_I32] = 6,  [TREK_I64] = 7,
                                                   [TREK_BOOL] = 9, [TREK_F16] = 10, [TREK_F64] = 11, [TREK_BF16] = 16 };
    return numbers[dtype];
}

static bool keep(trek_onnx *x, trek_tensor *tensor)
{
    if (!tensor || trek_array_grow(&x->kept, &x->cap_kept, x->n_kept + 1, sizeof *x->kept) != TREK_OK) {
        trek_tensor_release(tensor);
        x->failed = true;
        return false;
    }
    x->kept[x->n_kept++] = tensor;
    return true;
}

const char *trek_onnx_constant(trek_onnx *x, const char *name, trek_tensor *tensor)
{
    trek_tensor *host = trek_tensor_to(tensor, trek_cpu(0)), *flat = host ? trek_tensor_readable(host) : NULL;
    trek_tensor_release(host);
    char *own = name ? text_of(x, name) : new_name(x, "constant");
    TrekOnnx__TensorProto *t = trek_onnx_alloc(x, sizeof *t);
    int64_t *dims = trek_onnx_alloc(x, TREK_MAX_DIMS * sizeof *dims);
    if (!keep(x, flat) || !own || !t || !dims ||
        trek_array_grow(&x->tensors, &x->cap_tensors, x->n_tensors + 1, sizeof(TrekOnnx__TensorProto *)) != TREK_OK) {
        x->failed = true;
        return "";
    }
    trek_onnx__tensor_proto__init(t);
    memcpy(dims, flat->sizes, (size_t)flat->ndim * sizeof *dims);
    t->n_dims = flat->ndim;
    t->dims = dims;
    t->has_data_type = 1;
    t->data_type = trek_onnx_dtype((trek_dtype)flat->dtype);
    t->name = own;
    t->has_raw_data = 1;
    t->raw_data = (ProtobufCBinaryData){ (size_t)flat->numel * trek_item_size[flat->dtype], (uint8_t *)flat->data };
    x->tensors[x->n_tensors++] = t;
    return own;
}

/* Returns the name of an equal existing constant, so that small ones are written once. */
static const char *constant_once(trek_onnx *x, trek_tensor *tensor)
{
    if (!tensor) {
        x->failed = true;
        return "";
    }
    const char *name = NULL;
    for (int k = 0; k < x->n_tensors && !name; k++) {
        const TrekOnnx__TensorProto *t = x->tensors[k];
        if (t->name[0] == '/' && t->data_type == trek_onnx_dtype((trek_dtype)tensor->dtype) && t->n_dims == tensor->ndim &&
            memcmp(t->dims, tensor->sizes, t->n_dims * sizeof *t->dims) == 0 &&
            memcmp(t->raw_data.data, tensor->data, t->raw_data.len) == 0)
            name = t->name;
    }
    name = name ? name : trek_onnx_constant(x, NULL, tensor);
    trek_tensor_release(tensor);
    return name;
}

const char *trek_onnx_full(trek_onnx *x, trek_dtype dtype, double value, int ndim, const int64_t *sizes)
{
    return constant_once(x, trek_tensor_full(trek_shape_make(sizes, ndim), value, dtype, trek_cpu(0)));
}

const char *trek_onnx_scalar(trek_onnx *x, trek_dtype dtype, double value) { return trek_onnx_full(x, dtype, value, 0, NULL); }

const char *trek_onnx_ints(trek_onnx *x, int n, const int64_t *values)
{
    return constant_once(x, trek_tensor_from_data(values, trek_dims(n), TREK_I64, trek_cpu(0)));
}

const char *trek_onnx_int(trek_onnx *x, int64_t value) { return trek_onnx_ints(x, 1, &value); }

const char *trek_onnx_cast(trek_onnx *x, const char *a, trek_dtype from, trek_dtype to)
{
    if (from == to)
        return a;
    const char *name = trek_onnx_1(x, "Cast", a);
    trek_onnx_attr_int(x, "to", trek_onnx_dtype(to));
    return name;
}
