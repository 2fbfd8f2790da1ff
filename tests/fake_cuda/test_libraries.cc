/* SPDX-License-Identifier: Apache-2.0 */
/* The fake cuBLASLt against sums written out, every epilogue; the fake NCCL with
 * three ranks, with a rank that never comes, and with ranks that do not block. */
#include "test_shim.h"

#include <atomic>
#include <cmath>
#include <thread>

#include "cublasLt.h"
#include "fake_number.h"
#include "nccl.h"

#define LT(call) CHECK((call) == CUBLAS_STATUS_SUCCESS)
#define NC(call) CHECK((call) == ncclSuccess)

/* -- products -- */

enum { M = 16, N = 24, K = 32, AUX_LD = 128 };

struct Gemm {
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    float *A, *B, *D, *bias, *aux;
    char *workspace;
    std::vector<float> ha, hb, hc, hbias, haux;
};

static std::vector<float> numbers(size_t n, unsigned seed)
{
    std::vector<float> v(n);
    for (float &x : v) {
        seed = seed * 1664525u + 1013904223u;
        x = (float)(int)(seed >> 20) / 2048.0f - 1.0f;
    }
    return v;
}

template <typename T> static T *upload(const std::vector<T> &v)
{
    T *to;
    OK(cudaMalloc(&to, v.size() * sizeof(T)));
    OK(cudaMemcpy(to, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}

template <typename T> static std::vector<T> download(const T *from, size_t n)
{
    std::vector<T> v(n);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(v.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

static void set(Gemm &g, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t size)
{
    LT(cublasLtMatmulDescSetAttribute(g.desc, attribute, value, size));
}

/* D [M, N] = A [M, K] B^T [N, K]^T, with a bias of M and an auxiliary matrix */
static void make(Gemm &g)
{
    int32_t turned = CUBLAS_OP_T;
    int64_t ld = AUX_LD;
    LT(cublasLtCreate(&g.handle));
    LT(cublasLtMatmulDescCreate(&g.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(g, CUBLASLT_MATMUL_DESC_TRANSB, &turned, sizeof turned);
    LT(cublasLtMatrixLayoutCreate(&g.a, CUDA_R_32F, M, K, M));
    LT(cublasLtMatrixLayoutCreate(&g.b, CUDA_R_32F, N, K, N));
    LT(cublasLtMatrixLayoutCreate(&g.d, CUDA_R_32F, M, N, M));
    g.ha = numbers(M * K, 1);
    g.hb = numbers(N * K, 2);
    g.hc = numbers(M * N, 3);
    g.hbias = numbers(N, 4);
    g.haux = numbers(AUX_LD * N, 5);
    g.A = upload(g.ha);
    g.B = upload(g.hb);
    g.D = upload(g.hc);
    g.bias = upload(g.hbias);
    g.aux = upload(g.haux);
    OK(cudaMalloc(&g.workspace, 1 << 16));
    set(g, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias, sizeof g.bias);
    set(g, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g.aux, sizeof g.aux);
    set(g, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
}

static void drop(Gemm &g)
{
    OK(cudaDeviceSynchronize());
    for (void *p : {(void *)g.A, (void *)g.B, (void *)g.D, (void *)g.bias, (void *)g.aux, (void *)g.workspace})
        OK(cudaFree(p));
    LT(cublasLtMatrixLayoutDestroy(g.a));
    LT(cublasLtMatrixLayoutDestroy(g.b));
    LT(cublasLtMatrixLayoutDestroy(g.d));
    LT(cublasLtMatmulDescDestroy(g.desc));
    LT(cublasLtDestroy(g.handle));
}

static int candidates(Gemm &g, cublasLtMatmulHeuristicResult_t *results, uint64_t workspace, uint32_t alignment)
{
    cublasLtMatmulPreference_t wish = nullptr;
    int n = 0;
    LT(cublasLtMatmulPreferenceCreate(&wish));
    LT(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    for (int i = 0; i < 4; i++)
        LT(cublasLtMatmulPreferenceSetAttribute(
            wish, (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i), &alignment,
            sizeof alignment));
    cublasLtMatmulAlgoGetHeuristic(g.handle, g.desc, g.a, g.b, g.d, g.d, wish, 8, results, &n);
    LT(cublasLtMatmulPreferenceDestroy(wish));
    return n;
}

static cublasStatus_t multiply(Gemm &g, float alpha, float beta, const cublasLtMatmulAlgo_t *algorithm, size_t workspace)
{
    return cublasLtMatmul(g.handle, g.desc, &alpha, g.A, g.a, g.B, g.b, &beta, g.D, g.d, g.D, g.d, algorithm, g.workspace,
                          workspace,
                          nullptr);
}

static double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static bool bit_of(const std::vector<float> &aux, int i, int j)
{
    size_t at = (size_t)(i + j * AUX_LD);
    return reinterpret_cast<const unsigned char *>(aux.data())[at / 8] >> (at % 8) & 1;
}

/* What the epilogue should make of v at (i, j), from what the matrices held before. */
static double expected(const Gemm &g, int e, int i, int j, double v)
{
    double x = g.haux[(size_t)(i + j * AUX_LD)];
    v += e & 4 ? g.hbias[(size_t)i] : 0;
    if (e == CUBLASLT_EPILOGUE_DRELU || e == CUBLASLT_EPILOGUE_DRELU_BGRAD)
        return bit_of(g.haux, i, j) ? v : 0;
    if (e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
        return v * (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6;
    if (e & CUBLASLT_EPILOGUE_RELU)
        return v > 0 ? v : 0;
    return e & CUBLASLT_EPILOGUE_GELU ? gelu(v) : v;
}

static void check_side_outputs(const Gemm &g, int e, const std::vector<double> &pre, const std::vector<double> &out)
{
    std::vector<float> aux = download(g.aux, AUX_LD * N), bias = download(g.bias, N);
    int wrong = 0;
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++) {
            double v = pre[(size_t)(i + j * M)];
            if (e & CUBLASLT_EPILOGUE_RELU && e & 128)
                wrong += bit_of(aux, i, j) != (v > 0);
            if (e & CUBLASLT_EPILOGUE_GELU && e & 128)
                wrong += std::fabs(aux[(size_t)(i + j * AUX_LD)] - v) > 1e-4;
        }
    std::vector<double> sum(N);
    bool of_d = e == CUBLASLT_EPILOGUE_DRELU_BGRAD || e == CUBLASLT_EPILOGUE_DGELU_BGRAD;
    for (int i = 0; i < M && of_d; i++)
        for (int j = 0; j < N; j++)
            sum[(size_t)i] += out[(size_t)(i + j * M)];
    for (int i = 0; i < M && e == CUBLASLT_EPILOGUE_BGRADA; i++)
        for (int k = 0; k < K; k++)
            sum[(size_t)i] += g.ha[(size_t)(i + k * M)];
    for (int j = 0; j < N && e == CUBLASLT_EPILOGUE_BGRADB; j++)
        for (int k = 0; k < K; k++)
            sum[(size_t)j] += g.hb[(size_t)(j + k * N)];
    int n = e == CUBLASLT_EPILOGUE_BGRADB ? N : of_d || e == CUBLASLT_EPILOGUE_BGRADA ? M : 0;
    for (int i = 0; i < n; i++)
        wrong += std::fabs(bias[(size_t)i] - sum[(size_t)i]) > 1e-3;
    CHECK(wrong == 0);
}

static void test_epilogue(int32_t e, float beta)
{
    Gemm g;
    cublasLtMatmulHeuristicResult_t results[8];
    make(g);
    set(g, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e);
    int n = candidates(g, results, 1 << 16, 256);
    CHECK(n == 4 && results[0].workspaceSize == 0 && results[1].workspaceSize > 0);
    LT(multiply(g, 0.5f, beta, &results[1].algo, results[1].workspaceSize));
    std::vector<float> D = download(g.D, M * N);
    std::vector<double> pre(M * N), out(M * N);
    int wrong = 0;
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++) {
            double v = 0;
            for (int k = 0; k < K; k++)
                v += (double)g.ha[(size_t)(i + k * M)] * g.hb[(size_t)(j + k * N)];
            v = 0.5 * v + beta * g.hc[(size_t)(i + j * M)];
            size_t at = (size_t)(i + j * M);
            pre[at] = v + (e & 4 ? g.hbias[(size_t)i] : 0);
            out[at] = expected(g, e, i, j, v);
            wrong += std::fabs(D[at] - out[at]) > 1e-4;
        }
    CHECK(wrong == 0);
    if (wrong)
        fprintf(stderr, "epilogue %d: %d elements are wrong\n", e, wrong);
    check_side_outputs(g, e, pre, out);
    drop(g);
}

static void test_refusals()
{
    Gemm g;
    cublasLtMatmulHeuristicResult_t results[8];
    int32_t e = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, plain = CUBLASLT_EPILOGUE_DEFAULT, order = CUBLASLT_ORDER_ROW;
    int64_t ld = 12;
    make(g);
    CHECK(candidates(g, results, 0, 256) == 3 && results[0].workspaceSize == 0);
    CHECK(candidates(g, results, 1 << 16, 4) == 1);
    CHECK(candidates(g, results, 1 << 16, 128) == 3);
    CHECK(candidates(g, results, 1 << 16, 256) == 4);
    CHECK(multiply(g, 1, 0, &results[1].algo, 16) == CUBLAS_STATUS_INVALID_VALUE); /* too small a workspace */
    g.A += 1;
    CHECK(multiply(g, 1, 0, &results[2].algo, 0) == CUBLAS_STATUS_NOT_SUPPORTED); /* not aligned as promised */
    g.A += 31;
    CHECK(multiply(g, 1, 0, &results[0].algo, 0) == CUBLAS_STATUS_NOT_SUPPORTED); /* 128 bytes off */
    g.A -= 31;
    g.A += M * K;
    CHECK(multiply(g, 1, 0, nullptr, 0) == CUBLAS_STATUS_INVALID_VALUE); /* beyond its memory */
    g.A -= M * K + 1;
    set(g, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e);
    CHECK(multiply(g, 1, 0, &results[1].algo, 1 << 16) == CUBLAS_STATUS_INVALID_VALUE); /* an algorithm for another problem */
    set(g, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    CHECK(candidates(g, results, 0, 256) == 0); /* 12 is no multiple of 8, and less than M */
    set(g, CUBLASLT_MATMUL_DESC_EPILOGUE, &plain, sizeof plain);
    LT(cublasLtMatrixLayoutSetAttribute(g.b, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
    CHECK(candidates(g, results, 0, 256) == 0); /* a leading dimension too small for rows */
    CHECK(cublasLtMatrixLayoutSetAttribute(g.b, CUBLASLT_MATRIX_LAYOUT_LD, &e, sizeof e) == CUBLAS_STATUS_INVALID_VALUE);
    drop(g);
}

/* bf16, a batch, rows, and scaling by C in doubles */
static void test_types()
{
    const int64_t stride = 6;
    const int32_t batches = 2, order = CUBLASLT_ORDER_ROW;
    const float one = 1, zero = 0;
    std::vector<uint16_t> x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    for (uint16_t &h : x)
        h = fake::float_to_bf16((float)h);
    uint16_t *X = upload(x), *Y;
    OK(cudaMalloc(&Y, 8 * sizeof *Y));
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, d;
    int32_t turned = CUBLAS_OP_T;
    int64_t small = 4;
    LT(cublasLtCreate(&handle));
    LT(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &turned, sizeof turned));
    LT(cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, 2, 3, 3));
    LT(cublasLtMatrixLayoutCreate(&d, CUDA_R_16BF, 2, 2, 2));
    for (cublasLtMatrixLayout_t l : {a, d}) {
        LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
        LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches));
        LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, l == a ? &stride : &small,
                                            sizeof stride));
    }
    LT(cublasLtMatmul(handle, desc, &one, X, a, X, a, &zero, nullptr, d, Y, d, nullptr, nullptr, 0, nullptr));
    std::vector<uint16_t> y = download(Y, 8);
    const float want[8] = {14, 32, 32, 77, 194, 266, 266, 365};
    for (size_t i = 0; i < 8; i++)
        CHECK(y[i] == fake::float_to_bf16(want[i]));
    LT(cublasLtMatrixLayoutDestroy(a));
    LT(cublasLtMatrixLayoutDestroy(d));
    LT(cublasLtMatmulDescDestroy(desc));
    LT(cublasLtDestroy(handle));
    OK(cudaFree(X));
    OK(cudaFree(Y));
}

/* -- ranks -- */

static ncclResult_t through(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        NC(ncclCommGetAsyncError(comm, &state));
    return state;
}

static void one_rank(int rank, ncclUniqueId id, bool blocking)
{
    enum { COUNT = 30 };
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = nullptr;
    cudaStream_t stream;
    config.blocking = blocking;
    OK(cudaSetDevice(rank));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ncclResult_t result = ncclCommInitRankConfig(&comm, 3, id, rank, &config);
    CHECK(result == (blocking ? ncclSuccess : ncclInProgress));
    CHECK(through(comm) == ncclSuccess);
    std::vector<float> x(3 * COUNT), gathered;
    for (size_t i = 0; i < x.size(); i++)
        x[i] = (float)((int)i + 100 * rank);
    float *X = upload(x), *Y;
    OK(cudaMalloc(&Y, 3 * COUNT * sizeof(float)));
    auto go = [&](ncclResult_t r) { CHECK(r == ncclSuccess || (r == ncclInProgress && !blocking && through(comm) == ncclSuccess));
                                    };
    for (int round = 0; round < 3; round++) {
        go(ncclAllReduce(X, Y, COUNT, ncclFloat32, round ? ncclSum : ncclMax, comm, stream));
        go(ncclReduceScatter(X, Y + COUNT, COUNT, ncclFloat32, ncclAvg, comm, stream));
        go(ncclBroadcast(X, Y + 2 * COUNT, COUNT, ncclFloat32, 2, comm, stream));
        OK(cudaStreamSynchronize(stream));
        gathered = download(Y, 3 * COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            CHECK(gathered[i] == (round ? 3.0f * (float)i + 300.0f : (float)i + 200.0f));
            CHECK(gathered[COUNT + i] == (float)i + (float)(COUNT * rank) + 100.0f);
            CHECK(gathered[2 * COUNT + i] == (float)i + 200.0f);
        }
    }
    go(ncclAllGather(X, Y, COUNT, ncclFloat32, comm, stream));
    OK(cudaStreamSynchronize(stream));
    gathered = download(Y, 3 * COUNT);
    for (size_t i = 0; i < 3 * COUNT; i++)
        CHECK(gathered[i] == (float)(i % COUNT) + 100.0f * (float)(i / COUNT));
    NC(ncclGroupStart());
    NC(ncclSend(X, COUNT, ncclFloat32, (rank + 1) % 3, comm, stream));
    NC(ncclRecv(Y, COUNT, ncclFloat32, (rank + 2) % 3, comm, stream));
    go(ncclGroupEnd());
    OK(cudaStreamSynchronize(stream));
    CHECK(download(Y, COUNT)[1] == 1.0f + 100.0f * (float)((rank + 2) % 3));
    result = ncclCommFinalize(comm);
    CHECK(result == (blocking ? ncclSuccess : ncclInProgress) && through(comm) == ncclSuccess);
    NC(ncclCommDestroy(comm));
    OK(cudaFree(X));
    OK(cudaFree(Y));
    OK(cudaStreamDestroy(stream));
}

static void test_ranks(bool blocking)
{
    ncclUniqueId id;
    NC(ncclGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; r++)
        threads.emplace_back(one_rank, r, id, blocking);
    for (std::thread &t : threads)
        t.join();
}

/* A peer that never comes: the stream hangs until the abort. */
static void test_abort()
{
    const int devices[2] = {0, 1}, twice[2] = {0, 0};
    ncclComm_t comms[2];
    float *x;
    cudaStream_t stream;
    CHECK(ncclCommInitAll(comms, 2, twice) == ncclInvalidUsage);
    NC(ncclCommAbort(comms[0]));
    NC(ncclCommAbort(comms[1]));
    NC(ncclCommInitAll(comms, 2, devices));
    OK(cudaMalloc(&x, 64));
    OK(cudaMemset(x, 0, 64));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(ncclAllReduce(x, x, 17, ncclFloat32, ncclSum, comms[0], stream) == ncclInvalidArgument); /* too long */
    CHECK(strstr(ncclGetLastError(comms[0]), "device memory"));
    CHECK(ncclAllReduce(x, x, 16, ncclFloat32, ncclSum, comms[1], stream) == ncclInvalidUsage); /* the stream of device 0 */
    NC(ncclAllReduce(x, x, 16, ncclFloat32, ncclSum, comms[0], stream));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    NC(ncclCommAbort(comms[0]));
    OK(cudaStreamSynchronize(stream));
    NC(ncclCommAbort(comms[1]));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(x));
    cudaGetLastError();
}

void test_libraries(void)
{
    for (int e : {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_AUX, CUBLASLT_EPILOGUE_BIAS,
                  CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_DRELU,
                  CUBLASLT_EPILOGUE_DRELU_BGRAD,
                  CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_BIAS,
                  CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                  CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
        test_epilogue(e, 0);
        test_epilogue(e, 0.25f);
    }
    test_refusals();
    test_types();
    test_ranks(true);
    test_ranks(false);
    test_abort();
}
