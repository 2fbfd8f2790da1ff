/* SPDX-License-Identifier: Apache-2.0 */
/* The model's messages around its nodes, and the files. */
#include "nn/module_internal.h"
#include "onnx/onnx_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "nn/replace_file.h"
#include <onnx.pb-c.h>
#include "tensor/version.h"

/* --- what goes in and comes out -------------------------------------------------------------- */

/* An open dimension gets the name of the size that it equals in all runs, if there is one. */
static void describe_dim(trek_onnx *x, TrekOnnx__TensorShapeProto__Dimension *dim, int value, int d)
{
    int64_t sizes[TREK_ONNX_RUNS];
    for (int r = 0; r < x->n_runs; r++)
        sizes[r] = x->runs[r].values[value].sizes[d];
    if (trek_onnx_same(x, sizes)) {
        dim->has_dim_value = 1;
        dim->dim_value = sizes[0];
        return;
    }
    for (int s = 0; s < x->n_symbols; s++)
        if (memcmp(sizes, x->symbols[s].sizes, (size_t)x->n_runs * sizeof *sizes) == 0)
            dim->dim_param = trek_onnx_text(x, "%s", x->symbols[s].name);
}

static TrekOnnx__ValueInfoProto *described(trek_onnx *x, const char *name, int value)
{
    const trek_onnx_value *v = &x->runs[0].values[value];
    TrekOnnx__ValueInfoProto *info = trek_onnx_alloc(x, sizeof *info);
    TrekOnnx__TypeProto *type = trek_onnx_alloc(x, sizeof *type);
    TrekOnnx__TypeProto__Tensor *tensor = trek_onnx_alloc(x, sizeof *tensor);
    TrekOnnx__TensorShapeProto *shape = trek_onnx_alloc(x, sizeof *shape);
    TrekOnnx__TensorShapeProto__Dimension **dims = trek_onnx_alloc(x, TREK_MAX_DIMS * sizeof *dims);
    if (x->failed)
        return NULL;
    trek_onnx__value_info_proto__init(info);
    trek_onnx__type_proto__init(type);
    trek_onnx__type_proto__tensor__init(tensor);
    trek_onnx__tensor_shape_proto__init(shape);
    info->name = (char *)(uintptr_t)name;
    info->type = type;
    type->tensor_type = tensor;
    tensor->has_elem_type = 1;
    tensor->elem_type = trek_onnx_dtype(v->dtype);
    tensor->shape = shape;
    shape->n_dim = (size_t)v->ndim;
    shape->dim = dims;
    for (int d = 0; d < v->ndim; d++) {
        dims[d] = trek_onnx_alloc(x, sizeof *dims[d]);
        if (!dims[d])
            return NULL;
        trek_onnx__tensor_shape_proto__dimension__init(dims[d]);
        describe_dim(x, dims[d], value, d);
    }
    return info;
}

/* --- parameters in a file of their own ------------------------------------------------------------- */

enum { LEAST_OUTSIDE = 1024, ALIGNMENT = 4096 };
static const size_t most_inside = (size_t)1800 << 20;

static TrekOnnx__StringStringEntryProto *entry(trek_onnx *x, const char *key, const char *value)
{
    TrekOnnx__StringStringEntryProto *e = trek_onnx_alloc(x, sizeof *e);
    if (!e)
        return NULL;
    trek_onnx__string_string_entry_proto__init(e);
    e->key = (char *)(uintptr_t)key;
    e->value = (char *)(uintptr_t)value;
    return e;
}

static trek_status put_bytes(int file, const void *data, size_t bytes, const char *path)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t put = write(file, at, bytes < ((size_t)1 << 30) ? bytes : (size_t)1 << 30);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return trek_fail(TREK_ERR_IO, "onnx_export: %s: cannot be written: %s", path,
                             put < 0 ? strerror(errno) : "nothing was written");
        at += put;
        bytes -= (size_t)put;
    }
    return TREK_OK;
}

static bool goes_outside(const TrekOnnx__TensorProto *t) { return t->raw_data.len >= LEAST_OUTSIDE; }

/* Writes what is stored outside the model, and notes where it is. */
static trek_status write_outside(trek_onnx *x, int file, const char *path, const char *location)
{
    static const char nothing[ALIGNMENT];
    size_t at = 0;
    trek_status status = TREK_OK;
    for (int k = 0; k < x->n_tensors && status == TREK_OK; k++) {
        TrekOnnx__TensorProto *t = x->tensors[k];
        if (!goes_outside(t))
            continue;
        size_t gap = (ALIGNMENT - at % ALIGNMENT) % ALIGNMENT;
        status = put_bytes(file, nothing, gap, path);
        if (status == TREK_OK)
            status = put_bytes(file, t->raw_data.data, t->raw_data.len, path);
        TrekOnnx__StringStringEntryProto **entries = trek_onnx_alloc(x, 3 * sizeof *entries);
        if (!entries)
            return TREK_ERR_MEMORY;
        at += gap;
        entries[0] = entry(x, "location", location);
        entries[1] = entry(x, "offset", trek_onnx_text(x, "%zu", at));
        entries[2] = entry(x, "length", trek_onnx_text(x, "%zu", t->raw_data.len));
        at += t->raw_data.len;
        t->n_external_data = 3;
        t->external_data = entries;
        t->has_data_location = 1;
        t->data_location = 1;
        t->has_raw_data = 0;
        t->raw_data = (ProtobufCBinaryData){ 0, NULL };
    }
    return x->failed ? TREK_ERR_MEMORY : status;
}

/* --- the model ------------------------------------------------------------------------------------ */

/* Protobuf-c's messages, written piece by piece. */
typedef struct to_file {
    ProtobufCBuffer base;
    int file;
    const char *path;
    trek_status status;
    size_t n;
    uint8_t bytes[65536];
} to_file;

static void flush(to_file *f)
{
    if (f->status == TREK_OK)
        f->status = put_bytes(f->file, f->bytes, f->n, f->path);
    f->n = 0;
}

static void append(ProtobufCBuffer *buffer, size_t bytes, const uint8_t *data)
{
    to_file *f = (to_file *)(void *)buffer;
    if (f->n + bytes > sizeof f->bytes)
        flush(f);
    if (bytes > sizeof f->bytes) {
        if (f->status == TREK_OK)
            f->status = put_bytes(f->file, data, bytes, f->path);
        return;
    }
    memcpy(f->bytes + f->n, data, bytes);
    f->n += bytes;
}

static bool describe(trek_onnx *x, TrekOnnx__GraphProto *graph)
{
    const trek_onnx_run *run = &x->runs[0];
    TrekOnnx__ValueInfoProto **in = trek_onnx_alloc(x, (size_t)(x->n_inputs + 1) * sizeof *in);
    TrekOnnx__ValueInfoProto **out = trek_onnx_alloc(x, (size_t)(run->n_outputs + 1) * sizeof *out);
    if (x->failed)
        return false;
    for (int v = 0; v < run->n_values; v++)
        if (run->values[v].kind == TREK_ONNX_INPUT)
            in[graph->n_input++] = described(x, x->input_names[run->values[v].from], v);
    for (int k = 0; k < run->n_outputs; k++)
        out[graph->n_output++] = described(x, x->output_names[k], run->outputs[k]);
    graph->input = in;
    graph->output = out;
    graph->name = trek_onnx_text(x, "%s", x->module->own->klass->name);
    graph->n_node = (size_t)x->n_nodes;
    graph->node = x->nodes;
    graph->n_initializer = (size_t)x->n_tensors;
    graph->initializer = x->tensors;
    return !x->failed;
}

static trek_status write_model(trek_onnx *x, int file, const char *path)
{
    TrekOnnx__ModelProto model = TREK_ONNX__MODEL_PROTO__INIT;
    TrekOnnx__GraphProto graph = TREK_ONNX__GRAPH_PROTO__INIT;
    TrekOnnx__OperatorSetIdProto set = TREK_ONNX__OPERATOR_SET_ID_PROTO__INIT, *sets = &set;
    if (!describe(x, &graph))
        return TREK_ERR_MEMORY;
    model.has_ir_version = 1;
    model.ir_version = x->opset >= 21 ? 10 : x->opset >= 19 ? 9 : 8;
    model.producer_name = trek_onnx_text(x, "trek");
    model.producer_version = trek_onnx_text(x, "%s", trek_version());
    model.graph = &graph;
    set.domain = trek_onnx_text(x, "%s", "");
    set.has_version = 1;
    set.version = x->opset;
    model.n_opset_import = 1;
    model.opset_import = &sets;
    to_file *f = x->failed ? NULL : trek_onnx_alloc(x, sizeof *f);
    if (!f)
        return TREK_ERR_MEMORY;
    *f = (to_file){ .base = { .append = append }, .file = file, .path = path };
    trek_onnx__model_proto__pack_to_buffer(&model, &f->base);
    flush(f);
    return f->status;
}

trek_status trek_onnx_write(trek_onnx *x, const char *path)
{
    size_t bytes = 0;
    for (int k = 0; k < x->n_tensors; k++)
        bytes += x->tensors[k]->raw_data.len;
    int asked = x->opts->external_data;
    bool outside = asked > 0 || (asked == 0 && bytes > most_inside);
    const char *slash = strrchr(path, '/'), *data_path = trek_onnx_text(x, "%s.data", path);
    const char *location = trek_onnx_text(x, "%s.data", slash ? slash + 1 : path);
    trek_file_replacement data, model;
    if (x->failed)
        return TREK_ERR_MEMORY;
    if (outside && trek_replace_begin(&data, data_path) != TREK_OK)
        return trek_error_status();
    trek_status status = outside ? write_outside(x, data.file, data_path, location) : TREK_OK;
    bool begun = status == TREK_OK && (status = trek_replace_begin(&model, path)) == TREK_OK;
    if (begun)
        status = write_model(x, model.file, path);
    if (outside)
        status = trek_replace_end(&data, status); /* in its place before the model that refers to it */
    return begun ? trek_replace_end(&model, status) : status;
}
