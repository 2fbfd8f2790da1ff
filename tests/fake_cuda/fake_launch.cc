/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: their limits, and how they come onto a stream. Faults, and whose they are. */
#include <csignal>
#include <cstdio>
#include <unistd.h>

#include "fake_kernel.h"

namespace fake {

size_t allowed_shared(const void *function);

/* -- faults: whose they are, before the process dies of them -- */

static struct sigaction old_fault[2];

static void on_fault(int number, siginfo_t *info, void *)
{
    char text[256];
    int n;
    const char *kernel = running_kernel();
    if (kernel)
        n = snprintf(text, sizeof text, "fake cuda: fault at %p in kernel %s, block (%u,%u,%u) thread (%u,%u,%u)\n",
                     info->si_addr,
                     kernel, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    else
        n = snprintf(text, sizeof text, "fake cuda: fault at %p outside kernels%s\n", info->si_addr,
                     info->si_code == 4 ? ": the host touches device memory" : "");
    if (n > 0 && write(2, text, (size_t)n) < 0)
        n = 0;
    sigaction(number, &old_fault[number == SIGBUS], nullptr); /* the same instruction faults again */
}

void watch_faults()
{
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &old_fault[0]);
    sigaction(SIGBUS, &action, &old_fault[1]);
}

/* Faults on the stacks of fibers need another stack to be told on. */
void fault_stack()
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(TREK_SHIM_TSAN)
    static thread_local std::unique_ptr<char[]> memory;
    memory.reset(new char[64 << 10]);
    stack_t stack = {};
    stack.ss_sp = memory.get();
    stack.ss_size = 64 << 10;
    sigaltstack(&stack, nullptr);
#endif
}

/* -- limits -- */

static cudaError_t check_limits(const dim3 &grid, const dim3 &block, size_t shared, const void *function)
{
    unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (threads == 0 || threads > MAX_BLOCK || block.x > 1024 || block.y > 1024 || block.z > 64)
        return cudaErrorInvalidConfiguration;
    if (shared > state().shared)
        return cudaErrorInvalidConfiguration;
    return shared > allowed_shared(function) ? cudaErrorInvalidValue : cudaSuccess;
}

} // namespace fake

using namespace fake;

cudaError_t trek_shim_launch(const char *name, bool barriers, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                             std::function<void()> body, const void *function, std::vector<unsigned char> arguments)
{
    cudaError_t error = enter("cudaLaunchKernel");
    if (!error)
        error = check_limits(grid, block, shared_bytes, function);
    if (error)
        return give(error);
    static std::atomic<unsigned long> launches{0};
    unsigned seed = state().late.load(std::memory_order_relaxed);
    auto kernel = std::make_shared<Kernel>();
    kernel->name = name;
    kernel->barriers = barriers;
    kernel->grid = grid;
    kernel->block = block;
    kernel->shared_bytes = shared_bytes;
    kernel->body = std::move(body);
    kernel->function = function;
    kernel->arguments = std::move(arguments);
    kernel->random = seed ? (launches.fetch_add(1, std::memory_order_relaxed) + seed) * 2654435761ul >> 16 : 0;
    Task task;
    task.kind = Kind::kernel;
    task.name = name;
    if (runs_ptx())
        task.run = [kernel] { run_ptx(*kernel); };
    else
        task.run = [kernel] { run_kernel(*kernel); };
    CUstream_st *s;
    error = find_stream(stream, &s);
    if (!error)
        kernel->device = s->device;
    return give(error ? error : submit(stream, std::move(task)));
}

bool trek_shim_wants_arguments(void) { return runs_ptx(); }
void trek_shim_add_argument(std::vector<unsigned char> *bytes, const void *argument, size_t size)
{
    const unsigned char *p = (const unsigned char *)argument;
    bytes->insert(bytes->end(), p, p + size);
}

cudaError_t trek_shim_enqueue(cudaStream_t stream, const char *name, std::function<void()> work)
{
    cudaError_t error = enter("trek_shim_enqueue");
    if (error)
        return give(error);
    Task task;
    task.kind = Kind::copy;
    task.name = name;
    task.run = std::move(work);
    return give(submit(stream, std::move(task)));
}
