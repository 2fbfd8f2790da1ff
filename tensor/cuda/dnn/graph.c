/* SPDX-License-Identifier: Apache-2.0 */
/* Operation graphs by cuDNN's backend interface. */
#include "tensor/cuda/dnn/graph.h"

#ifdef TREK_HAVE_CUDNN
#include <string.h>

#define CANDIDATES 32
#if CUDNN_VERSION < 90800 /* it cannot be asked about devices that do not exist */
#define CUDNN_ATTR_ENGINEHEUR_DEVICEPROP ((cudnnBackendAttributeName_t)204)
#define CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP ((cudnnBackendAttributeName_t)407)
#endif

typedef cudnnBackendDescriptor_t descriptor;

/* --- building ------------------------------------------------------------------------------- */

static descriptor make(trek_dnn_graph *graph, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    if (!graph->failed && !trek_dnn_fine(trek_dnn()->BackendCreateDescriptor(type, &d)))
        d = NULL;
    graph->failed = graph->failed || !d;
    return d;
}

static void set(trek_dnn_graph *graph, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    if (!graph->failed)
        graph->failed = !trek_dnn_fine(trek_dnn()->BackendSetAttribute(d, name, type, count, values));
}

static void set_part(trek_dnn_graph *graph, descriptor d, cudnnBackendAttributeName_t name, descriptor part)
{
    set(graph, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static void finish(trek_dnn_graph *graph, descriptor d)
{
    if (!graph->failed)
        graph->failed = !trek_dnn_fine(trek_dnn()->BackendFinalize(d));
}

static void drop(descriptor *d)
{
    if (*d)
        trek_dnn()->BackendDestroyDescriptor(*d);
    *d = NULL;
}

descriptor trek_dnn_tensor(trek_dnn_graph *graph, trek_dnn_place place, int64_t number, cudnnDataType_t type,
                           const trek_dnn_shape *shape)
{
    const int64_t alignment = 16;
    const bool between = place == TREK_DNN_BETWEEN, by_value = place == TREK_DNN_NUMBER;
    if (graph->failed || graph->n_tensors == TREK_DNN_TENSORS) {
        graph->failed = true;
        return NULL;
    }
    if (between)
        number = 1000 + graph->n_tensors;
    descriptor d = graph->tensors[graph->n_tensors] = make(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    graph->n_tensors += d != NULL;
    set(graph, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &number);
    set(graph, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(graph, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(graph, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->sizes);
    set(graph, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->strides);
    set(graph, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    if (by_value)
        set(graph, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(graph, d);
    return graph->failed ? NULL : d;
}

/* Adds an operation, and the descriptor of its kind (kind_type < 0: it has none). */
static descriptor add(trek_dnn_graph *graph, cudnnBackendDescriptorType_t type, int kind_type, descriptor *kind)
{
    if (graph->failed || graph->n_operations == TREK_DNN_OPERATIONS) {
        graph->failed = true;
        return NULL;
    }
    int at = graph->n_operations;
    graph->operations[at] = make(graph, type);
    if (kind_type >= 0)
        *kind = graph->kinds[at] = make(graph, (cudnnBackendDescriptorType_t)kind_type);
    graph->n_operations++;
    return graph->operations[at];
}

void trek_dnn_pointwise(trek_dnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis, descriptor x,
                        descriptor b, descriptor t, descriptor y)
{
    descriptor kind = NULL, d = add(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                                    &kind);
    set(graph, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(graph, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(graph, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(graph, kind);
    set_part(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    set_part(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        set_part(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t)
        set_part(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_part(graph, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finish(graph, d);
}

void trek_dnn_matmul(trek_dnn_graph *graph, descriptor a, descriptor b, descriptor c)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    descriptor kind = NULL, d = add(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &kind);
    set(graph, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(graph, kind);
    set_part(graph, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_part(graph, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_part(graph, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_part(graph, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    finish(graph, d);
}

void trek_dnn_reduction(trek_dnn_graph *graph, cudnnReduceTensorOp_t op, descriptor x, descriptor y)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    descriptor kind = NULL, d = add(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                                    &kind);
    set(graph, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(graph, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(graph, kind);
    set_part(graph, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    set_part(graph, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_part(graph, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    finish(graph, d);
}

/* The names of the parts of a pass. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, kind, x, weight, y;
} passes[] = {
    [TREK_DNN_FORWARD] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y },
    [TREK_DNN_OF_INPUT] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY },
    [TREK_DNN_OF_WEIGHT] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY },
};

void trek_dnn_convolution(trek_dnn_graph *graph, trek_dnn_pass pass, const int64_t numbers[6], descriptor x, descriptor weight,
                          descriptor y)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t dimensions = 2;
    const float one = 1, zero = 0;
    descriptor kind = NULL, d = add(graph, passes[pass].type, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &kind);
    set(graph, kind, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(graph, kind, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(graph, kind, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions);
    set(graph, kind, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, numbers);
    set(graph, kind, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, numbers + 2);
    set(graph, kind, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, numbers + 2);
    set(graph, kind, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, numbers + 4);
    finish(graph, kind);
    set(graph, d, passes[pass].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    set(graph, d, passes[pass].beta, CUDNN_TYPE_FLOAT, 1, &zero);
    set_part(graph, d, passes[pass].kind, kind);
    set_part(graph, d, passes[pass].x, x);
    set_part(graph, d, passes[pass].weight, weight);
    set_part(graph, d, passes[pass].y, y);
    finish(graph, d);
}

void trek_dnn_reshape(trek_dnn_graph *graph, descriptor x, descriptor y)
{
    descriptor d = add(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, -1, NULL);
    set_part(graph, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_part(graph, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    finish(graph, d);
}

/* --- the plan ----------------------------------------------------------------------------------- */

/* Returns whether two runs of an engine give the same bits; exact: and whether it multiplies f32 without rounding. */
static bool is_fit(descriptor config, bool exact)
{
    const trek_dnn_library *dnn = trek_dnn();
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    descriptor engine = NULL;
    int64_t n = 0;
    bool known = trek_dnn_fine(dnn->BackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)) &&
        trek_dnn_fine(dnn->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                               &engine)) &&
        trek_dnn_fine(dnn->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes));
    for (int64_t k = 0; known && k < n; k++)
        known = notes[k] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC &&
            !(exact && (notes[k] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || notes[k] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
    drop(&engine);
    return known;
}

/* Takes the config of a repeatable engine if it makes a plan that fits; it then owns the config. */
static bool try_config(trek_dnn_graph *graph, descriptor *config, cudnnHandle_t handle, descriptor device, size_t limit)
{
    static const char too_large[] = "cuDNN's engines of equal bits in each run need too much workspace (more than 4 GiB for "
                                    "attention, 512 MiB for convolutions)";
    const trek_dnn_library *dnn = trek_dnn();
    descriptor plan = NULL;
    int64_t workspace = 0, n = 0;
    bool fine = trek_dnn_fine(dnn->BackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan)) &&
        trek_dnn_fine(dnn->BackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                               config));
    if (device)
        fine = fine && trek_dnn_fine(dnn->BackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                                              CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device));
    else
        fine = fine && trek_dnn_fine(dnn->BackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                                              &handle));
    fine = fine && trek_dnn_fine(dnn->BackendFinalize(plan)) &&
        trek_dnn_fine(dnn->BackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                               &workspace)) &&
        workspace >= 0;
    graph->why = fine ? too_large : "cuDNN makes no plan of the graph";
    if (!fine || (size_t)workspace > limit) {
        drop(&plan);
        return false;
    }
    graph->plan = plan;
    graph->config = *config;
    graph->workspace = (size_t)workspace;
    graph->why = NULL;
    *config = NULL;
    return true;
}

/* Gets the library's candidates of one kind, best first. */
static int64_t ask(trek_dnn_graph *graph, cudnnBackendHeurMode_t mode, descriptor device, descriptor configs[CANDIDATES])
{
    int64_t n = 0;
    drop(&graph->heuristics);
    descriptor heuristics = graph->heuristics = make(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_part(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph->all);
    set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (device)
        set_part(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    finish(graph, heuristics);
    for (int k = 0; k < CANDIDATES; k++)
        configs[k] = make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!graph->failed)
        graph->failed = !trek_dnn_fine(trek_dnn()->BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, CANDIDATES, &n, configs));
    return graph->failed ? 0 : n;
}

/* Makes the plan from the first suitable candidate. */
static bool choose(trek_dnn_graph *graph, cudnnBackendHeurMode_t mode, cudnnHandle_t handle, descriptor device, size_t limit)
{
    descriptor configs[CANDIDATES] = { NULL };
    bool found = false;
    int64_t n = ask(graph, mode, device, configs);
    if (n > 0 && !graph->why)
        graph->why = "cuDNN has no engine for the graph that gives the same bits in each run";
    for (int64_t k = 0; k < n && k < CANDIDATES && !found; k++)
        found = is_fit(configs[k], graph->exact) && try_config(graph, &configs[k], handle, device, limit);
    for (int k = 0; k < CANDIDATES; k++)
        drop(&configs[k]);
    return found;
}

/* First tries the fastest; then, with fewer restrictions, what works at all: f32 without tensor cores is often only
 * available there. */
bool trek_dnn_graph_plan(trek_dnn_graph *graph, cudnnHandle_t handle, descriptor device, size_t limit)
{
    graph->all = make(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(graph, graph->all, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->n_operations, graph->operations);
    if (!device)
        set(graph, graph->all, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finish(graph, graph->all);
    if (choose(graph, CUDNN_HEUR_MODE_A, handle, device, limit) || choose(graph, CUDNN_HEUR_MODE_FALLBACK, handle, device, limit))
        return true;
    if (!graph->why)
        graph->why = graph->failed ? "cuDNN does not take the graph" : "cuDNN has no engine for the graph";
    return false;
}

cudnnStatus_t trek_dnn_graph_run(const trek_dnn_graph *graph, cudnnHandle_t handle, int n, const int64_t *numbers,
                                 void *const *addresses, void *workspace)
{
    const trek_dnn_library *dnn = trek_dnn();
    descriptor pack = NULL;
    cudnnStatus_t status = dnn->BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (!trek_dnn_fine(status))
        return status;
    status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, addresses);
    if (trek_dnn_fine(status))
        status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, numbers);
    if (trek_dnn_fine(status))
        status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (trek_dnn_fine(status))
        status = dnn->BackendFinalize(pack);
    if (trek_dnn_fine(status))
        status = dnn->BackendExecute(handle, graph->plan, pack);
    drop(&pack);
    return status;
}

void trek_dnn_graph_free(trek_dnn_graph *graph)
{
    drop(&graph->plan);
    drop(&graph->config);
    drop(&graph->heuristics);
    drop(&graph->all);
    for (int k = 0; k < graph->n_operations; k++) {
        drop(&graph->operations[k]);
        drop(&graph->kinds[k]);
    }
    for (int k = 0; k < graph->n_tensors; k++)
        drop(&graph->tensors[k]);
    memset(graph, 0, sizeof *graph);
}

#endif
