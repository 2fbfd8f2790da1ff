/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: what captures leave, made runnable. A replay runs the nodes in one of the
 * orders that the edges allow, another each time, so that a missing edge shows. */
#include "fake_internal.h"

namespace fake {

static std::shared_ptr<Program> program_of(const CUgraph_st *graph)
{
    static std::atomic<unsigned> made{0};
    auto program = std::make_shared<Program>();
    program->random.seed(state().late + 104729u * ++made);
    for (const auto &node : graph->nodes) {
        Program::Step step;
        step.task = node->task;
        for (const Node *before : node->after)
            step.after.push_back(before->index);
        program->steps.push_back(std::move(step));
    }
    return program;
}

void Program::run()
{
    std::lock_guard<std::mutex> lock(running);
    std::vector<size_t> waits(steps.size(), 0), ready;
    std::vector<std::vector<size_t>> next(steps.size());
    for (size_t i = 0; i < steps.size(); i++) {
        waits[i] = steps[i].after.size();
        for (size_t before : steps[i].after)
            next[before].push_back(i);
        if (waits[i] == 0)
            ready.push_back(i);
    }
    while (!ready.empty() && !state().quitting.load(std::memory_order_relaxed)) {
        size_t at = random() % ready.size(), i = ready[at];
        ready.erase(ready.begin() + (long)at);
        run_task(steps[i].task);
        for (size_t n : next[i])
            if (--waits[n] == 0)
                ready.push_back(n);
    }
}

static cudaGraphNodeType type_of(const Task &task)
{
    switch (task.kind) {
    case Kind::kernel: return cudaGraphNodeTypeKernel;
    case Kind::copy: return cudaGraphNodeTypeMemcpy;
    case Kind::set: return cudaGraphNodeTypeMemset;
    case Kind::host: return cudaGraphNodeTypeHost;
    case Kind::graph: return cudaGraphNodeTypeGraph;
    default: return cudaGraphNodeTypeEmpty;
    }
}

static cudaGraphExecUpdateResult compare(const Program &old, const Program &next)
{
    if (old.steps.size() != next.steps.size())
        return cudaGraphExecUpdateErrorTopologyChanged;
    for (size_t i = 0; i < old.steps.size(); i++) {
        if (old.steps[i].after != next.steps[i].after)
            return cudaGraphExecUpdateErrorTopologyChanged;
        if (old.steps[i].task.kind != next.steps[i].task.kind)
            return cudaGraphExecUpdateErrorNodeTypeChanged;
        if (old.steps[i].task.device != next.steps[i].task.device)
            return cudaGraphExecUpdateErrorParametersChanged;
    }
    return cudaGraphExecUpdateSuccess;
}

} // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    FAKE_ENTER();
    if (!graph || graph->magic != MAGIC_GRAPH || !count)
        return give(cudaErrorInvalidValue);
    if (!nodes) {
        *count = graph->nodes.size();
        return cudaSuccess;
    }
    for (size_t i = 0; i < *count; i++)
        nodes[i] = i < graph->nodes.size() ? reinterpret_cast<cudaGraphNode_t>(graph->nodes[i].get()) : nullptr;
    if (*count > graph->nodes.size())
        *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    FAKE_ENTER();
    if (!node)
        return give(cudaErrorInvalidValue);
    *type = type_of(reinterpret_cast<Node *>(node)->task);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    FAKE_ENTER();
    if (!graph || graph->magic != MAGIC_GRAPH)
        return give(cudaErrorInvalidValue);
    graph->magic = MAGIC_DEAD;
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    FAKE_ENTER();
    (void)flags;
    *exec = nullptr;
    if (!graph || graph->magic != MAGIC_GRAPH)
        return give(cudaErrorInvalidValue);
    *exec = new CUgraphExec_st;
    (*exec)->program = program_of(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *result)
{
    FAKE_ENTER();
    if (!exec || exec->magic != MAGIC_EXEC || !graph || graph->magic != MAGIC_GRAPH)
        return give(cudaErrorInvalidValue);
    std::shared_ptr<Program> next = program_of(graph);
    std::lock_guard<std::mutex> lock(exec->mutex);
    cudaGraphExecUpdateResult same = compare(*exec->program, *next);
    if (result) {
        result->result = same;
        result->errorNode = result->errorFromNode = nullptr;
    }
    if (same != cudaGraphExecUpdateSuccess)
        return give(cudaErrorGraphExecUpdateFailure);
    exec->program = next; /* launches under way keep the old one */
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    FAKE_ENTER();
    CUstream_st *s;
    if (!exec || exec->magic != MAGIC_EXEC)
        return give(cudaErrorInvalidValue);
    return give(find_stream(stream, &s));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    FAKE_ENTER();
    if (!exec || exec->magic != MAGIC_EXEC)
        return give(cudaErrorInvalidValue);
    std::shared_ptr<Program> program;
    {
        std::lock_guard<std::mutex> lock(exec->mutex);
        program = exec->program;
    }
    Task task;
    task.kind = Kind::graph;
    task.name = "graph";
    task.run = [program] { program->run(); };
    return give(submit(stream, std::move(task)));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    FAKE_ENTER();
    if (!exec || exec->magic != MAGIC_EXEC)
        return give(cudaErrorInvalidValue);
    exec->magic = MAGIC_DEAD;
    delete exec;
    return cudaSuccess;
}

} // extern "C"
