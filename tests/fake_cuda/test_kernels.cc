/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels in the shim: shared memory, barriers, exchanges, atomics, limits, and what
 * is wrong with some. */
#include "test_shim.h"

#include <string>

static cudaError_t launch(const char *name, bool barriers, dim3 grid, dim3 block, size_t shared, std::function<void()> body)
{
    return trek_shim_launch(name, barriers, grid, block, shared, nullptr, std::move(body));
}

static std::vector<int> fetch(const int *from, size_t n)
{
    std::vector<int> to(n);
    OK(cudaMemcpy(to.data(), from, n * sizeof(int), cudaMemcpyDeviceToHost));
    return to;
}

/* -- one block reduction, by shuffles and shared memory -- */

__global__ void block_sum(const int *x, int *sums, int n)
{
    TREK_SHARED(int, part, 32);
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), v = i < n ? x[i] : 0;
    for (int step = 16; step; step >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < (blockDim.x + 31) / 32 ? part[threadIdx.x] : 0;
        v = __reduce_add_sync(0xffffffffu, v);
        if (threadIdx.x == 0)
            sums[blockIdx.x] = v;
    }
}

static void test_reduction(int *device)
{
    const int n = 1000, blocks = 4;
    std::vector<int> x(n);
    long want[blocks] = {};
    for (int i = 0; i < n; i++)
        want[i / 256] += x[(size_t)i] = i * 7 % 31 - 9;
    OK(cudaMemcpy(device, x.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    for (int round = 0; round < 3; round++)
        OK(launch("block_sum", true, blocks, 256, 0, [=] { block_sum(device, device + n, n); }));
    std::vector<int> sums = fetch(device + n, blocks);
    for (int b = 0; b < blocks; b++)
        CHECK(sums[(size_t)b] == want[b]);
}

/* -- each exchange -- */

__global__ void exchanges(int *out)
{
    int lane = (int)threadIdx.x, *mine = out + lane * 12;
    const unsigned all = 0xffffffffu;
    mine[0] = __shfl_sync(all, lane, lane + 1, 8);
    mine[1] = __shfl_up_sync(all, lane, 3, 16);
    mine[2] = __shfl_down_sync(all, lane, 3, 16);
    mine[3] = (int)__ballot_sync(all, lane % 3 == 0);
    mine[4] = __any_sync(all, lane == 7) * 2 + __all_sync(all, lane < 31);
    mine[5] = __reduce_max_sync(all, lane - 16);
    mine[6] = (int)__reduce_min_sync(all, (unsigned)lane - 16u);
    mine[7] = (int)__match_any_sync(all, lane / 8);
    mine[8] = (int)(__shfl_xor_sync(all, 0.5 + lane, 1) * 2);
    if (lane < 16)
        mine[9] = __shfl_xor_sync(0x0000ffffu, lane, 1); /* half a warp */
    else
        mine[9] = __shfl_xor_sync(0xffff0000u, lane, 2);
    mine[10] = __syncthreads_count(lane % 5 == 0) * 100 + __syncthreads_or(lane == 3) * 10 + __syncthreads_and(lane < 40);
    mine[11] = (int)__activemask();
}

static void test_exchanges(int *device)
{
    OK(launch("exchanges", true, 1, 32, 0, [=] { exchanges(device); }));
    std::vector<int> out = fetch(device, 32 * 12);
    for (int lane = 0; lane < 32; lane++) {
        const int *mine = &out[(size_t)lane * 12];
        CHECK(mine[0] == (lane & ~7) + (lane + 1) % 8);
        CHECK(mine[1] == (lane % 16 < 3 ? lane : lane - 3));
        CHECK(mine[2] == (lane % 16 > 12 ? lane : lane + 3));
        CHECK((unsigned)mine[3] == 0x49249249u);
        CHECK(mine[4] == 2 && mine[5] == 15 && mine[6] == 0);
        CHECK((unsigned)mine[7] == 0xffu << (lane / 8 * 8));
        CHECK(mine[8] == 1 + 2 * (lane ^ 1));
        CHECK(mine[9] == (lane < 16 ? lane ^ 1 : lane ^ 2));
        CHECK(mine[10] == 711);
        CHECK((unsigned)mine[11] != 0);
    }
}

/* -- atomics, dynamic shared memory, threads that leave early -- */

__global__ void count_up(int *x)
{
    atomicAdd(x, 1);
    atomicMax(x + 1, (int)(blockIdx.x * blockDim.x + threadIdx.x));
    atomicAdd((float *)(x + 2), 0.5f);
    atomicCAS(x + 3, -1, 8);
}

__global__ void leave_early(int *x)
{
    int *shared = (int *)trek_shim_dynamic_shared(), i = (int)threadIdx.x;
    int fresh = shared[i];
    __syncthreads();
    if (i >= 40)
        return;
    shared[i] = i;
    __syncthreads();
    x[i] = fresh == -1 ? shared[39 - i] : -7;
}

static void test_others(int *device)
{
    const int start[4] = {0, 0, 0, -1};
    OK(cudaMemcpy(device, start, sizeof start, cudaMemcpyHostToDevice));
    OK(launch("count_up", false, dim3(3, 2), dim3(10, 2), 0, [=] { count_up(device); }));
    std::vector<int> x = fetch(device, 4);
    float half;
    memcpy(&half, &x[2], sizeof half);
    CHECK(x[0] == 120 && x[1] == 29 && half == 60.0f && x[3] == 8);
    OK(launch("leave_early", true, 2, 64, 64 * sizeof(int), [=] { leave_early(device); }));
    x = fetch(device, 40);
    for (int i = 0; i < 40; i++)
        CHECK(x[(size_t)i] == 39 - i);
}

static void test_limits()
{
    auto nothing = [] {};
    CHECK(launch("nothing", false, 0, 32, 0, nothing) == cudaErrorInvalidConfiguration);
    CHECK(launch("nothing", false, 1, 1025, 0, nothing) == cudaErrorInvalidConfiguration);
    CHECK(launch("nothing", false, dim3(1, 65536), 32, 0, nothing) == cudaErrorInvalidConfiguration);
    CHECK(launch("nothing", false, 1, dim3(1, 1, 65), 0, nothing) == cudaErrorInvalidConfiguration);
    CHECK(launch("nothing", false, 1, 32, (227 << 10) + 1, nothing) == cudaErrorInvalidConfiguration);
    OK(launch("nothing", false, 1, 32, 227 << 10, nothing));
    CHECK(trek_shim_launch("big", false, 1, 32, 60 << 10, nullptr, nothing, (const void *)count_up) == cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(count_up, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 << 10));
    OK(trek_shim_launch("big", false, 1, 32, 60 << 10, nullptr, nothing, (const void *)count_up));
    OK(cudaDeviceSynchronize());
    cudaGetLastError();
}

/* -- kernels that are wrong -- */

static void expect_report(const char *words, const char *kernel)
{
    char text[512];
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
    trek_fake_report(text, sizeof text);
    CHECK(strstr(text, words) && strstr(text, kernel));
    OK(cudaDeviceReset());
    cudaGetLastError();
}

static void test_wrong_kernels()
{
    OK(launch("no_barriers", false, 1, 32, 0, [] { __syncthreads(); }));
    expect_report("launched as one without barriers", "no_barriers");
    OK(launch("diverges", true, 2, 64, 0, [] {
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __shfl_sync(0xffffffffu, 1, 0), __syncwarp(threadIdx.x < 40 ? 0xffu : 0xffffff00u), __syncthreads();
    }));
    OK(cudaDeviceSynchronize()); /* odd, but every barrier is reached by all */
    OK(launch("hangs", true, 2, 64, 0, [] {
        if (threadIdx.x % 32 < 16)
            __syncthreads();
        else
            __shfl_sync(0xffffffffu, 1, 0);
    }));
    expect_report("waits forever", "hangs");
    OK(launch("left_out", true, 1, 32, 0, [] { __shfl_sync(1u, 1, 0); }));
    expect_report("mask leaves it out", "left_out");
    OK(launch("trapped", true, 1, 32, 0, [] { __trap(); }));
    expect_report("__trap", "trapped");
    OK(launch("too_much", true, 1, 32, 0, [] {
        TREK_SHARED(char, big, 50000);
        big[threadIdx.x] = 1;
    }));
    expect_report("48 KiB", "too_much");
}

/* Every thread reads its neighbour's place, and `waits` says whether the neighbour has written it. */
void race(bool waits)
{
    int *device = nullptr;
    OK(cudaMalloc(&device, 64 * sizeof(int)));
    OK(launch("race", true, 2, 64, 0, [=] {
        TREK_SHARED(int, place, 64);
        place[threadIdx.x] = (int)threadIdx.x;
        if (waits)
            __syncthreads();
        device[threadIdx.x] = place[(threadIdx.x + 33) % 64];
        __syncthreads();
    }));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(device));
}

void die_out_of_bounds(void)
{
    int *device = nullptr;
    OK(cudaMalloc(&device, 4096 * sizeof(int)));
    OK(launch("out_of_bounds", false, 1, 32, 0, [=] { ((volatile int *)device)[4096 + threadIdx.x] = 1; }));
    OK(cudaDeviceSynchronize());
}

void test_kernels(void)
{
    const size_t n = 4096;
    int *device;
    OK(cudaMalloc(&device, n * sizeof(int)));
    test_reduction(device);
    test_exchanges(device);
    test_others(device);
    test_limits();
    test_wrong_kernels();
    CHECK(dies_of("out_of_bounds", "in kernel out_of_bounds"));
    race(true); /* under TSan a report would end the test */
#if defined(TREK_TEST_RACES)
    CHECK(dies_of("race", "data race"));
#endif
    OK(cudaFree(device));
}
