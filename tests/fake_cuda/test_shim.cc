/* SPDX-License-Identifier: Apache-2.0 */
/* The fake runtime itself: memory, streams, events, capture, failures. */
#include "test_shim.h"

#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

int failures;

/* -- helpers -- */

bool dies_of(const char *what, const char *words)
{
    int ends[2];
    if (pipe(ends))
        return false;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        execl("/proc/self/exe", "test_shim", what, (char *)nullptr);
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char text[512];
    for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;)
        said.append(text, (size_t)n);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    bool died = !(WIFEXITED(status) && WEXITSTATUS(status) == 0), found = said.find(words) != std::string::npos;
    if (!died || !found)
        fprintf(stderr, "%s: status %d, said: %s\n", what, status, said.c_str());
    return died && found;
}

static void die_host_touch(void)
{
    float *x = nullptr;
    OK(cudaMalloc(&x, 4));
    *(volatile float *)x = 1.0f;
}

__global__ void add_one(float *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] += 1.0f;
}

static cudaError_t launch_add(float *x, int n, cudaStream_t stream)
{
    return trek_shim_launch("add_one", false, dim3((unsigned)(n + 63) / 64), 64, 0, stream, [=] { add_one(x, n); });
}

static cudaStream_t new_stream()
{
    cudaStream_t s = nullptr;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

/* -- the tests -- */

static void test_devices()
{
    int n = 0, value = 0;
    cudaDeviceProp p;
    OK(cudaGetDeviceCount(&n));
    CHECK(n == 3);
    OK(cudaGetDeviceProperties(&p, 1));
    CHECK(p.major == 9 && strstr(p.name, "Fake"));
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
    CHECK(value == 32);
    CHECK(cudaSetDevice(3) == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess);
    CHECK(!strcmp(cudaGetErrorName(cudaErrorLaunchFailure), "cudaErrorLaunchFailure"));
}

static void test_memory()
{
    size_t before = trek_fake_device_bytes(0), room = 0, all = 0;
    void *p = nullptr, *q = nullptr;
    OK(cudaMemGetInfo(&room, &all));
    CHECK(cudaMalloc(&p, all + 1) == cudaErrorMemoryAllocation && !p);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 1000));
    CHECK(((uintptr_t)p & 255) == 0 && trek_fake_device_bytes(0) == before + 1000);
    unsigned char byte = 0;
    OK(cudaMemcpy(&byte, (char *)p + 999, 1, cudaMemcpyDeviceToHost));
    CHECK(byte == 0xff); /* fresh memory is filled */
    CHECK(cudaMemcpy(&byte, (char *)p + 1000, 1, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(p, &byte, 1, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy((char *)p + 900, (char *)p, 200, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
    CHECK(cudaFree((char *)p + 1) == cudaErrorInvalidValue);
    cudaPointerAttributes about;
    OK(cudaPointerGetAttributes(&about, (char *)p + 5));
    CHECK(about.type == cudaMemoryTypeDevice && about.device == 0);
    OK(cudaHostAlloc(&q, 64, cudaHostAllocMapped));
    OK(cudaPointerGetAttributes(&about, q));
    CHECK(about.type == cudaMemoryTypeHost);
    OK(cudaFreeHost(q));
    OK(cudaFree(p));
    CHECK(trek_fake_device_bytes(0) == before && trek_fake_device_bytes(-1) == 0);
    cudaGetLastError();
}

/* What is pinned is read when the stream gets there, what is pageable when the call is made. */
static void test_late()
{
    const int n = 100;
    float *device, *pinned, pageable[n], back[n];
    cudaStream_t s = new_stream();
    OK(cudaMalloc(&device, 2 * n * sizeof(float)));
    OK(cudaHostAlloc(&pinned, n * sizeof(float), 0));
    for (int i = 0; i < n; i++)
        pinned[i] = pageable[i] = 1.0f;
    trek_fake_hold(0);
    OK(cudaMemcpyAsync(device, pinned, sizeof pageable, cudaMemcpyHostToDevice, s));
    OK(cudaMemcpyAsync(device + n, pageable, sizeof pageable, cudaMemcpyHostToDevice, s));
    CHECK(cudaStreamQuery(s) == cudaErrorNotReady);
    for (int i = 0; i < n; i++)
        pageable[i] = 5.0f; /* it has been read */
    for (int i = 0; i < n && may_race; i++)
        pinned[i] = 5.0f; /* too early */
    trek_fake_let_go(0);
    OK(launch_add(device, 2 * n, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamQuery(s));
    OK(cudaMemcpyAsync(back, device, sizeof back, cudaMemcpyDeviceToHost, s));
    float late = may_race ? 6.0f : 2.0f;
    CHECK(back[0] == late && back[n - 1] == late);
    OK(cudaMemcpyAsync(back, device + n, sizeof back, cudaMemcpyDeviceToHost, s));
    CHECK(back[0] == 2.0f && back[n - 1] == 2.0f);
    trek_fake_hold(0);
    OK(cudaMemcpyAsync(pinned, device, sizeof back, cudaMemcpyDeviceToHost, s));
    CHECK(!may_race || pinned[0] == 5.0f); /* read too early: the old data */
    trek_fake_let_go(0);
    OK(cudaStreamSynchronize(s));
    CHECK(pinned[0] == late);
    OK(cudaFreeHost(pinned));
    OK(cudaFree(device));
    OK(cudaStreamDestroy(s));
    cudaGetLastError();
}

static void test_events()
{
    const int n = 64;
    float *x, *y, back[n];
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t e, begin, end;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaMalloc(&x, sizeof back));
    OK(cudaMalloc(&y, sizeof back));
    OK(cudaEventQuery(e)); /* never recorded */
    for (int round = 0; round < 50; round++) {
        OK(cudaMemsetAsync(x, 0, sizeof back, a));
        OK(cudaEventRecord(begin, a));
        for (int k = 0; k < 4; k++)
            OK(launch_add(x, n, a));
        OK(cudaEventRecord(e, a));
        OK(cudaEventRecord(end, a));
        OK(cudaStreamWaitEvent(b, e, 0));
        OK(cudaMemcpyAsync(y, x, sizeof back, cudaMemcpyDeviceToDevice, b));
        OK(cudaEventRecord(e, b));
        OK(cudaStreamWaitEvent(a, e, 0));
        OK(cudaMemcpyAsync(back, y, sizeof back, cudaMemcpyDeviceToHost, b));
        CHECK(back[0] == 4.0f && back[n - 1] == 4.0f);
    }
    float ms = -1;
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms >= 0 && ms < 60e3f);
    CHECK(cudaEventElapsedTime(&ms, begin, e) == cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
    OK(cudaFree(y));
    cudaGetLastError();
}

static void test_second_device()
{
    float *there, *here, back = 0;
    OK(cudaSetDevice(1));
    cudaStream_t s = new_stream();
    OK(cudaMalloc(&there, 4));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&here, 4));
    CHECK(launch_add(there, 1, s) == cudaErrorInvalidResourceHandle); /* the stream of another device */
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
    OK(cudaMemset(here, 0, 4));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpyPeerAsync(there, 1, here, 0, 4, s));
    CHECK(cudaMemcpyPeerAsync(there, 0, here, 1, 4, s) == cudaErrorInvalidValue);
    OK(cudaSetDevice(1));
    OK(launch_add(there, 1, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(&back, there, 4, cudaMemcpyDeviceToHost));
    CHECK(back == 1.0f);
    int can = 0;
    OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    CHECK(can);
    OK(cudaDeviceEnablePeerAccess(0, 0));
    CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
    OK(launch_add(here, 1, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaDeviceDisablePeerAccess(0));
    OK(cudaStreamDestroy(s));
    OK(cudaFree(there));
    OK(cudaFree(here));
    OK(cudaSetDevice(0));
    cudaGetLastError();
}

static void test_protection()
{
    const char *why = nullptr;
    if (!trek_fake_memory_protected(&why)) {
        printf("skipped: host touch faults: %s\n", why);
        return;
    }
    CHECK(dies_of("host_touch", "the host touches device memory"));
}

static void test_failures()
{
    void *p, *q;
    trek_fake_fail("cudaMalloc:2,cudaLaunchKernel:1,cudaEventRecord:1:709");
    OK(cudaMalloc(&p, 4));
    CHECK(cudaMalloc(&q, 4) == cudaErrorMemoryAllocation);
    CHECK(launch_add((float *)p, 1, nullptr) == cudaErrorLaunchOutOfResources);
    OK(launch_add((float *)p, 1, nullptr));
    OK(cudaMalloc(&q, 4));
    OK(cudaFree(q));
    CHECK(trek_fake_calls("cudaMalloc") == 3);
    trek_fake_fail("kernel:2"); /* a fault on the device stays */
    OK(launch_add((float *)p, 1, nullptr));
    OK(launch_add((float *)p, 1, nullptr));
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK(cudaMalloc(&q, 4) == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    OK(cudaSetDevice(1));
    trek_fake_fail(nullptr);
    OK(cudaMalloc(&q, 4)); /* the other device is well */
    OK(cudaFree(q));
    CHECK(cudaSetDevice(0) == cudaErrorIllegalAddress);
    OK(cudaDeviceReset());
    cudaGetLastError();
    OK(cudaGetLastError());
    OK(cudaFree(p));
}

/* -- capture -- */

static void test_capture()
{
    const int n = 64;
    float *x, back[n];
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t fork_point, join_point;
    OK(cudaEventCreateWithFlags(&fork_point, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join_point, cudaEventDisableTiming));
    OK(cudaMalloc(&x, 2 * sizeof back));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(x, 0, 2 * sizeof back, a));
    OK(cudaEventRecord(fork_point, a));
    OK(cudaStreamWaitEvent(b, fork_point, 0));
    OK(launch_add(x + n, n, b));
    OK(launch_add(x, n, a));
    OK(cudaEventRecord(join_point, b));
    OK(cudaStreamWaitEvent(a, join_point, 0));
    OK(launch_add(x, 2 * n, a));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    OK(cudaStreamEndCapture(a, &graph));
    size_t nodes = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 4);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaMemcpy(back, x, sizeof back, cudaMemcpyDeviceToHost));
    CHECK(back[0] != back[0]); /* nothing has run yet */
    for (int round = 0; round < 20; round++) {
        OK(cudaGraphLaunch(exec, a));
        OK(cudaMemcpyAsync(back, x + n, sizeof back, cudaMemcpyDeviceToHost, a));
        CHECK(back[0] == 2.0f && back[n - 1] == 2.0f);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaEventDestroy(fork_point));
    OK(cudaEventDestroy(join_point));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
    cudaGetLastError();
}

static void test_capture_refusals()
{
    float *x, pageable = 0;
    void *more;
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t e, outside;
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    OK(cudaMalloc(&x, 4));
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&outside, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
    const std::function<cudaError_t()> bad[] = {
        [&] { return cudaStreamSynchronize(a); },
        [&] { return cudaDeviceSynchronize(); },
        [&] { return cudaMalloc(&more, 4); },
        [&] { return cudaMemcpyAsync(x, &pageable, 4, cudaMemcpyHostToDevice, a); },
        [&] { return cudaEventQuery(outside); },
    };
    for (const auto &call : bad) {
        OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
        CHECK(call() == cudaErrorStreamCaptureUnsupported);
        OK(cudaStreamIsCapturing(a, &status));
        CHECK(status == cudaStreamCaptureStatusInvalidated);
        CHECK(launch_add(x, 1, a) == cudaErrorStreamCaptureInvalidated);
        CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
        OK(cudaStreamSynchronize(a));
    }
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(e, a));
    OK(cudaStreamWaitEvent(b, e, 0));
    OK(launch_add(x, 1, b)); /* and nobody waits for it */
    CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureUnjoined);
    OK(cudaEventRecord(outside, b));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    CHECK(cudaStreamWaitEvent(a, outside, 0) == cudaErrorStreamCaptureIsolation);
    CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureInvalidated);
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(outside));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
    cudaGetLastError();
}

static void test_host_function()
{
    static int called;
    cudaStream_t s = new_stream();
    OK(cudaLaunchHostFunc(s, [](void *data) { *(int *)data += cudaStreamQuery(nullptr) == cudaErrorNotPermitted; }, &called));
    OK(cudaStreamSynchronize(s));
    CHECK(called == 1);
    OK(cudaStreamDestroy(s));
}

int main(int argc, char **argv)
{
    setenv("TREK_FAKE_GPUS", "3", 1);
    setenv("TREK_FAKE_RACES", "1", 0);
    if (argc > 1 && !strcmp(argv[1], "host_touch"))
        die_host_touch();
    else if (argc > 1 && !strcmp(argv[1], "out_of_bounds"))
        die_out_of_bounds();
    else if (argc > 1)
        race(false);
    if (argc > 1)
        return 0;
    test_devices();
    test_memory();
    test_late();
    test_events();
    test_second_device();
    test_host_function();
    test_capture();
    test_capture_refusals();
    test_kernels();
    test_libraries();
    test_protection();
    test_failures();
    CHECK(trek_fake_streams() == 0 && trek_fake_events() == 0);
    CHECK(trek_fake_device_bytes(0) == 0 && trek_fake_device_bytes(1) == 0 && trek_fake_device_bytes(2) == 0);
    printf("%s\n", failures ? "FAILED" : "all well");
    return failures != 0;
}
