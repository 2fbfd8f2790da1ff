/* SPDX-License-Identifier: Apache-2.0 */
/* A fake cuDNN: descriptors of its backend interface, checked as they are finalised, heuristics
 * that offer engines nobody should take before one that is right, and graphs that run late, on
 * the stream, operation by operation (fake_cudnn_run.cc). It refuses what the real one refuses
 * of attention: depths that are no multiples of 8 or above 128, tensors askew; of convolutions: operands of several layouts, and
 * what follows in the same graph but a bias, or a bias and ReLU.
 * Failures asked for with TREK_FAKE_FAIL hit the functions here too. */
#include "fake_cudnn.h"

#include <cstring>
#include <set>

struct cudnnContext {
    unsigned magic;
    cudaStream_t stream;
};

namespace fake {

enum { MAGIC_DNN = 0x444e4e, ENGINES = 4 };
/* other bits each time; makes no plan; right, by tensor cores; right, without them */
enum { ENGINE_CHANCE, ENGINE_BROKEN, ENGINE_FINE, ENGINE_EXACT };

struct Attribute {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
    std::vector<std::shared_ptr<struct Descriptor>> parts;
};

struct Descriptor {
    cudnnBackendDescriptorType_t type;
    bool finished = false;
    std::map<int, Attribute> attributes;
    DnnTensorRef tensor;
    std::shared_ptr<DnnOperation> operation;
    std::shared_ptr<DnnGraph> graph;
    int engine = -1;
};

struct Holder {
    std::shared_ptr<Descriptor> d;
};

static Descriptor *of(cudnnBackendDescriptor_t descriptor)
{
    return descriptor ? static_cast<Holder *>(descriptor)->d.get() : nullptr;
}

static bool refused_now(const char *function, cudnnStatus_t *status)
{
    cudaError_t error;
    if (!fails_now(function, &error))
        return false;
    *status = CUDNN_STATUS_INTERNAL_ERROR;
    return true;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
    }
}

/* -- reading what was set -- */

template <typename T> static bool read(const Descriptor &d, int name, cudnnBackendAttributeType_t type, int64_t count, T *to)
{
    auto at = d.attributes.find(name);
    if (at == d.attributes.end() || at->second.type != type || at->second.count != count ||
        at->second.bytes.size() != sizeof(T) * (size_t)count)
        return false;
    memcpy(to, at->second.bytes.data(), at->second.bytes.size());
    return true;
}

static Descriptor *part(const Descriptor &d, int name, cudnnBackendDescriptorType_t type)
{
    auto at = d.attributes.find(name);
    bool fits = at != d.attributes.end() && at->second.parts.size() == 1 && at->second.parts[0]->type == type;
    return fits ? at->second.parts[0].get() : nullptr;
}

static DnnTensorRef tensor_of(const Descriptor &d, int name)
{
    Descriptor *t = part(d, name, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    return t ? t->tensor : nullptr;
}

/* -- finalising -- */

static bool finish_tensor(Descriptor &d)
{
    auto t = std::make_shared<DnnTensor>();
    int64_t alignment = 0;
    bool fine = read(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t->number) &&
        read(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type) &&
        read(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment) &&
        read(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->sizes.data()) &&
        read(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->strides.data());
    read(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &t->between);
    read(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &t->by_value);
    for (int i = 0; i < 4; i++)
        fine = fine && t->sizes[i] > 0 && t->strides[i] > 0;
    t->alignment = alignment;
    d.tensor = t;
    return fine && alignment > 0 && !(t->between && t->by_value);
}

static bool read_convolution(const Descriptor &d, DnnOperation &o)
{
    int mode = 0;
    int64_t dimensions = 0;
    std::array<int64_t, 2> after{};
    return read(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &o.compute) &&
        read(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode) && mode == CUDNN_CROSS_CORRELATION &&
        read(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions) && dimensions == 2 &&
        read(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, o.stride.data()) &&
        read(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, o.padding.data()) &&
        read(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, after.data()) && after == o.padding &&
        read(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, o.dilation.data());
}

static bool finish_operation(Descriptor &d, DnnKind kind, int kind_name, int kind_type, const int (&names)[4])
{
    auto o = std::make_shared<DnnOperation>();
    o->kind = kind;
    DnnTensorRef *tensors[4] = { &o->x, &o->b, &o->t, &o->y };
    for (int k = 0; k < 4; k++)
        if (names[k] >= 0)
            *tensors[k] = tensor_of(d, names[k]);
    if (kind_name >= 0) {
        Descriptor *of_kind = part(d, kind_name, (cudnnBackendDescriptorType_t)kind_type);
        if (!of_kind)
            return false;
        bool fine = kind >= DnnKind::conv ? read_convolution(*of_kind, *o) : kind == DnnKind::matmul
            ? read(*of_kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &o->compute)
            : kind == DnnKind::pointwise
            ? read(*of_kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &o->mode) &&
                read(*of_kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &o->compute)
            : read(*of_kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &o->mode) &&
                read(*of_kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &o->compute);
        if (kind == DnnKind::pointwise && o->mode == CUDNN_POINTWISE_GEN_INDEX)
            fine = fine && read(*of_kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &o->axis);
        if (!fine)
            return false;
    }
    d.operation = o;
    return dnn_fits(*o) && !o->y->by_value;
}

/* Each operation reads what lies in memory, or what one before it made; nothing is made twice. */
static bool finish_graph(Descriptor &d)
{
    auto at = d.attributes.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    cudnnHandle_t handle = nullptr;
    if (at == d.attributes.end() || !read(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle) || !handle ||
        handle->magic != MAGIC_DNN)
        return false;
    d.graph = std::make_shared<DnnGraph>();
    std::set<int64_t> made;
    std::map<int64_t, DnnTensorRef> seen;
    for (auto &p : at->second.parts) {
        if (!p->operation)
            return false;
        const DnnOperation &o = *p->operation;
        for (const DnnTensorRef &t : { o.x, o.b, o.t, o.y }) {
            if (t && seen.count(t->number) && seen[t->number] != t)
                return false; /* one number, two tensors */
            if (t)
                seen[t->number] = t;
            if (t && t != o.y && t->between && !made.count(t->number))
                return false;
        }
        if (!made.insert(o.y->number).second)
            return false;
        d.graph->operations.push_back(o);
    }
    return !d.graph->operations.empty();
}

/* What the real library's engines of attention take: two products, or five. */
static bool is_attention(const DnnGraph &graph)
{
    int products = 0;
    for (const DnnOperation &o : graph.operations) {
        products += o.kind == DnnKind::matmul;
        bool halves = o.kind != DnnKind::matmul || o.b->type == CUDNN_DATA_HALF || o.b->type == CUDNN_DATA_BFLOAT16;
        if (!halves || o.compute == CUDNN_DATA_DOUBLE)
            return false;
        for (const DnnTensorRef &t : { o.x, o.b, o.y })
            if (o.kind == DnnKind::matmul && !t->between && (t->strides[3] != 1 && t->strides[2] != 1))
                return false;
    }
    const DnnTensor &q = *graph.operations[0].x;
    return (products == 2 || products == 5) && q.sizes[3] % 8 == 0 && q.sizes[3] <= 128;
}

/* As they are: 1 and 0. */
static bool has_factors(const Descriptor &d, int alpha, int beta)
{
    float one = 0, zero = 1;
    return read(d, alpha, CUDNN_TYPE_FLOAT, 1, &one) && one == 1 && read(d, beta, CUDNN_TYPE_FLOAT, 1, &zero) && zero == 0;
}

/* 0: row-major, 1: channels last, 3: both (one channel, or one pixel); -1: neither. */
static int layout_of(const DnnTensor &t)
{
    const int order[2][4] = { { 3, 2, 1, 0 }, { 1, 3, 2, 0 } };
    int fits = 0;
    for (int k = 0; k < 2; k++) {
        int64_t stride = 1;
        bool fine = true;
        for (int d : order[k]) {
            fine = fine && (t.sizes[d] == 1 || t.strides[d] == stride);
            stride *= t.sizes[d];
        }
        fits |= fine ? 1 << k : 0;
    }
    return fits == 0 ? -1 : fits == 1 ? 0 : fits == 2 ? 1 : 3;
}

/* A convolution in one layout; behind a forward one a bias, or a bias and ReLU. */
static bool is_convolution(const DnnGraph &graph)
{
    const DnnOperation &first = graph.operations[0];
    size_t n = graph.operations.size();
    if (first.kind < DnnKind::conv || first.compute != CUDNN_DATA_FLOAT || n > 3 || (n > 1 && first.kind != DnnKind::conv))
        return false;
    int layouts = 3;
    for (const DnnTensorRef &t : { first.x, first.b, first.y }) {
        int layout = layout_of(*t);
        if (layout < 0)
            return false;
        layouts &= layout == 3 ? 3 : 1 << layout;
    }
    for (size_t k = 1; k < n; k++) {
        const DnnOperation &o = graph.operations[k];
        if (o.kind != DnnKind::pointwise || o.x != graph.operations[k - 1].y ||
            o.mode != (k == 1 ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD))
            return false;
    }
    return layouts != 0;
}

static cudnnStatus_t finish(Descriptor &d)
{
    static const int pointwise[4] = { CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                      CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC };
    static const int matmul[4] = { CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, -1,
                                   CUDNN_ATTR_OPERATION_MATMUL_CDESC };
    static const int reduction[4] = { CUDNN_ATTR_OPERATION_REDUCTION_XDESC, -1, -1, CUDNN_ATTR_OPERATION_REDUCTION_YDESC };
    static const int forward[4] = { CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, -1,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y };
    static const int of_input[4] = { CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                     -1, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX };
    static const int of_weight[4] = { CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, -1,
                                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW };
    static const int reshape[4] = { CUDNN_ATTR_OPERATION_RESHAPE_XDESC, -1, -1, CUDNN_ATTR_OPERATION_RESHAPE_YDESC };
    bool fine = true;
    switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: fine = finish_tensor(d); break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        fine = finish_operation(d, DnnKind::pointwise, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                                CUDNN_BACKEND_POINTWISE_DESCRIPTOR, pointwise);
        break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        fine = finish_operation(d, DnnKind::matmul, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_BACKEND_MATMUL_DESCRIPTOR, matmul);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        fine = finish_operation(d, DnnKind::reduction, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                                reduction);
        break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        fine = has_factors(d, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA) &&
            finish_operation(d, DnnKind::conv, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                             CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, forward);
        break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        fine = has_factors(d, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA) &&
            finish_operation(d, DnnKind::conv_of_input, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                             CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, of_input);
        break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        fine = has_factors(d, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA) &&
            finish_operation(d, DnnKind::conv_of_weight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                             CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, of_weight);
        break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: fine = finish_operation(d, DnnKind::reshape, -1, 0, reshape); break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: fine = finish_graph(d); break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
        Descriptor *graph = part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
        int mode = 0;
        fine = graph && read(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode) &&
            (mode == CUDNN_HEUR_MODE_A || mode == CUDNN_HEUR_MODE_FALLBACK);
        if (fine && !is_attention(*graph->graph) && !is_convolution(*graph->graph))
            return CUDNN_STATUS_NOT_SUPPORTED;
        break;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
        Descriptor *config = part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        cudnnHandle_t handle = nullptr;
        fine = config && read(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle) && handle;
        if (fine && config->engine == ENGINE_BROKEN)
            return CUDNN_STATUS_NOT_SUPPORTED;
        break;
    }
    default: break;
    }
    d.finished = fine;
    return fine ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/* -- what is asked for -- */

static size_t workspace_of(const DnnGraph &graph) { return 1024 + 256 * (graph.operations.size() % 3); }

/* Descriptors that the caller made are filled. */
static cudnnStatus_t give_configs(const Descriptor &heuristics, int64_t requested, int64_t *count, void *values)
{
    auto graph = part(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)->graph;
    int64_t n = requested < ENGINES ? requested : (int64_t)ENGINES;
    for (int64_t k = 0; k < n; k++) {
        Descriptor *config = of(static_cast<cudnnBackendDescriptor_t *>(values)[k]);
        if (!config || config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
            return CUDNN_STATUS_BAD_PARAM;
        config->graph = graph;
        config->engine = (int)k;
        config->finished = true;
    }
    *count = n;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get(Descriptor &d, int name, int64_t requested, int64_t *count, void *values)
{
    if (d.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS)
        return give_configs(d, requested, count, values);
    if (d.type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && name == CUDNN_ATTR_ENGINECFG_ENGINE && requested == 1) {
        Descriptor *engine = of(*static_cast<cudnnBackendDescriptor_t *>(values));
        if (!engine || engine->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR)
            return CUDNN_STATUS_BAD_PARAM;
        engine->engine = d.engine;
        engine->finished = true;
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    if (d.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && requested >= 2) {
        auto *notes = static_cast<cudnnBackendNumericalNote_t *>(values);
        notes[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        notes[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        *count = d.engine == ENGINE_CHANCE ? 2 : d.engine == ENGINE_EXACT ? 0 : 1;
        return CUDNN_STATUS_SUCCESS;
    }
    if (d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        Descriptor *config = part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        *static_cast<int64_t *>(values) = (int64_t)workspace_of(*config->graph);
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
}

/* -- running -- */

/* Every tensor in memory is named and lies in device memory, all of it, aligned as was said. */
static bool gather(const DnnGraph &graph, const Descriptor &pack, DnnRun *run)
{
    auto ids = pack.attributes.find(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    auto pointers = pack.attributes.find(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (ids == pack.attributes.end() || pointers == pack.attributes.end() || ids->second.count != pointers->second.count)
        return false;
    std::map<int64_t, void *> named;
    for (int64_t k = 0; k < ids->second.count; k++) {
        int64_t id;
        void *address;
        memcpy(&id, ids->second.bytes.data() + 8 * k, 8);
        memcpy(&address, pointers->second.bytes.data() + 8 * k, 8);
        named[id] = address;
    }
    std::set<int64_t> used;
    for (const DnnOperation &o : graph.operations)
        for (const DnnTensorRef &t : { o.x, o.b, o.t, o.y }) {
            if (!t || t->between)
                continue;
            auto at = named.find(t->number);
            if (at == named.end() || !at->second)
                return false;
            used.insert(t->number);
            if (t->by_value) {
                float value;
                memcpy(&value, at->second, sizeof value);
                run->values[t->number] = value;
                continue;
            }
            Block block;
            if (((uintptr_t)at->second & (uintptr_t)(t->alignment - 1)) != 0 ||
                where(at->second, (size_t)dnn_extent(*t) * dnn_size_of(t->type), &block) <= 0) {
                report("cudnnBackendExecute: tensor %lld does not lie in device memory, or askew", (long long)t->number);
                return false;
            }
            run->addresses[t->number] = at->second;
        }
    return used.size() == named.size();
}

} // namespace fake

using namespace fake;

extern "C" {

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    cudnnStatus_t status;
    if (refused_now(__func__, &status))
        return status;
    *handle = new cudnnContext{ MAGIC_DNN, nullptr };
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    if (!handle || handle->magic != MAGIC_DNN)
        return CUDNN_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor)
{
    cudnnStatus_t status;
    if (refused_now(__func__, &status))
        return status;
    auto d = std::make_shared<Descriptor>();
    d->type = type;
    *descriptor = new Holder{ d };
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    delete static_cast<Holder *>(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    cudnnStatus_t status;
    Descriptor *d = of(descriptor);
    if (refused_now(__func__, &status))
        return status;
    return d && !d->finished ? finish(*d) : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    Descriptor *d = of(descriptor);
    if (!d || d->finished || count < 1 || !values)
        return CUDNN_STATUS_BAD_PARAM;
    Attribute a = { type, count, {}, {} };
    const char *bytes = static_cast<const char *>(values);
    a.bytes.assign(bytes, bytes + size_of(type) * (size_t)count);
    for (int64_t k = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && k < count; k++) {
        auto *holder = static_cast<Holder *>(static_cast<const cudnnBackendDescriptor_t *>(values)[k]);
        if (!holder || !holder->d->finished)
            return CUDNN_STATUS_BAD_PARAM;
        a.parts.push_back(holder->d);
    }
    d->attributes[name] = a;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t requested, int64_t *count, void *values)
{
    Descriptor *d = of(descriptor);
    return d && d->finished ? get(*d, name, requested, count, values) : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    cudnnStatus_t status;
    Descriptor *p = of(plan), *v = of(pack);
    if (refused_now(__func__, &status))
        return status;
    if (!handle || handle->magic != MAGIC_DNN || !p || !v || !p->finished || !v->finished ||
        p->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || v->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return CUDNN_STATUS_BAD_PARAM;
    Descriptor *config = part(*p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    auto run = std::make_shared<DnnRun>();
    run->graph = config->graph;
    run->wrong = config->engine != ENGINE_FINE && config->engine != ENGINE_EXACT;
    run->rounds = config->engine == ENGINE_FINE;
    run->workspace_bytes = workspace_of(*config->graph);
    Block block;
    if (!read(*v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &run->workspace) ||
        where(run->workspace, run->workspace_bytes, &block) <= 0 || !gather(*run->graph, *v, run.get()))
        return CUDNN_STATUS_BAD_PARAM;
    cudaError_t error = trek_shim_enqueue(handle->stream, "cudnnBackendExecute", [run] { dnn_run(*run); });
    return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

} // extern "C"
