/* SPDX-License-Identifier: Apache-2.0 */
/* A fake cuBLASLt: descriptors, heuristics and products by plain loops, late, on the
 * stream. It refuses what the real one refuses, so that a cache of plans meets
 * refusals, workspaces and alignments.
 *
 * TREK_FAKE_CUBLASLT_EPILOGUES=0: every epilogue but the default is refused.
 * TREK_FAKE_CUBLASLT_SLOW=N: so many candidates more, each of which takes 90 ms longer by the device's clock.
 * TREK_FAKE_CUBLASLT_ODD=1: products depend on the algorithm, on the alignment of the addresses and on whether C is read, as they
 * may on a GPU, by some thousandths. Failures asked for with TREK_FAKE_FAIL hit the functions here too. */
#include "cublasLt.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include "fake_internal.h"
#include "fake_number.h"

struct cublasLtContext {
    unsigned magic;
};

namespace fake {

enum { SLOW_ID = 3, SLOW_MS = 90 };
enum { MAGIC_LT = 0x4c54, WORKSPACE_ALIGNMENT = 16, AUX = 128, RELU = 2, BIAS = 4, DRELU = 8, BGRAD = 16, GELU = 32, DGELU = 64 };

struct Layout {
    int32_t type, order;
    uint64_t rows, cols;
    int64_t ld, batch_stride;
    int32_t batches, made;
};
struct Desc {
    int32_t compute, scale, pointer_mode, transa, transb, epilogue, bias_type, aux_type;
    const void *bias, *a_scale, *b_scale;
    void *aux;
    int64_t bias_stride, aux_ld, aux_stride;
};
struct Preference {
    uint64_t workspace;
    uint32_t alignment[4];
};
struct Algorithm {
    uint32_t magic, id;
    uint64_t workspace, problem;
    uint32_t alignment[4];
    uint32_t told[4]; /* what it was said that addresses are aligned to */
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t) && sizeof(Desc) <= sizeof(cublasLtMatmulDescOpaque_t) &&
                  sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t) &&
                  sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t),
              "the fakes lie in the opaque memory of the real ones");

template <typename T, typename O> static T &in(O *opaque) { return *reinterpret_cast<T *>(opaque->data); }

static bool refused_now(const char *function, cublasStatus_t *status)
{
    cudaError_t error;
    if (!fails_now(function, &error))
        return false;
    *status =
        error == cudaErrorUnknown || error == cudaErrorMemoryAllocation ? CUBLAS_STATUS_INTERNAL_ERROR : (cublasStatus_t)error;
    return true;
}

/* -- elements -- */

static bool is_fp8(int type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
static size_t size_of(int type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2; }

/* By the formats' definition: sign, exponent, fraction; E4M3 has no infinities. */
static double fp8_to_double(uint8_t code, bool e5m2)
{
    int fraction_bits = e5m2 ? 2 : 3, exponent = (code & 0x7f) >> fraction_bits, bias = e5m2 ? 15 : 7;
    int fraction = code & ((1 << fraction_bits) - 1);
    double sign = code & 0x80 ? -1 : 1;
    if (e5m2 ? exponent == 31 : (code & 0x7f) == 0x7f)
        return e5m2 && fraction == 0 ? sign * INFINITY : NAN;
    double whole = exponent ? 1 + (double)fraction / (1 << fraction_bits) : (double)fraction / (1 << fraction_bits);
    return sign * std::ldexp(whole, (exponent ? exponent : 1) - bias);
}

static double load(const void *base, int64_t i, int type)
{
    switch (type) {
    case CUDA_R_64F: return static_cast<const double *>(base)[i];
    case CUDA_R_32F: return static_cast<const float *>(base)[i];
    case CUDA_R_16F: return f16_to_float(static_cast<const uint16_t *>(base)[i]);
    case CUDA_R_8F_E4M3: return fp8_to_double(static_cast<const uint8_t *>(base)[i], false);
    case CUDA_R_8F_E5M2: return fp8_to_double(static_cast<const uint8_t *>(base)[i], true);
    default: return bf16_to_float(static_cast<const uint16_t *>(base)[i]);
    }
}

static void store(void *base, int64_t i, int type, double v)
{
    switch (type) {
    case CUDA_R_64F: static_cast<double *>(base)[i] = v; break;
    case CUDA_R_32F: static_cast<float *>(base)[i] = (float)v; break;
    case CUDA_R_16F: static_cast<uint16_t *>(base)[i] = float_to_f16((float)v); break;
    default: static_cast<uint16_t *>(base)[i] = float_to_bf16((float)v); break;
    }
}

/* -- what is taken -- */

static int64_t at(const Layout &l, int64_t row, int64_t col)
{
    return l.order == CUBLASLT_ORDER_ROW ? row * l.ld + col : row + col * l.ld;
}

/* elements from the first to behind the last, of all batches */
static int64_t extent(const Layout &l)
{
    int64_t lines = (int64_t)(l.order == CUBLASLT_ORDER_ROW ? l.rows : l.cols);
    int64_t line = (int64_t)(l.order == CUBLASLT_ORDER_ROW ? l.cols : l.rows);
    return (lines - 1) * l.ld + line + (int64_t)(l.batches - 1) * l.batch_stride;
}

static bool sound(const Layout &l)
{
    int64_t line = (int64_t)(l.order == CUBLASLT_ORDER_ROW ? l.cols : l.rows);
    return l.rows > 0 && l.cols > 0 && l.ld >= line && l.batches >= 1 && l.batch_stride >= 0;
}

static bool types_fit(const Desc &desc, const Layout &a, const Layout &b, const Layout &c, const Layout &d)
{
    if (is_fp8(a.type) && is_fp8(b.type)) { /* as the guide has it: A transposed, B not, sizes of 16 bytes, not both E5M2 */
        bool shape = desc.transa && !desc.transb && a.rows % 16 == 0 && d.rows % 16 == 0;
        return shape && desc.compute == CUBLAS_COMPUTE_32F && desc.scale == CUDA_R_32F && c.type == d.type &&
               (d.type == CUDA_R_16BF || d.type == CUDA_R_32F) && !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2);
    }
    if (a.type != b.type || c.type != d.type || is_fp8(a.type))
        return false;
    if (desc.compute == CUBLAS_COMPUTE_64F || desc.compute == CUBLAS_COMPUTE_64F_PEDANTIC)
        return desc.scale == CUDA_R_64F && a.type == CUDA_R_64F && d.type == CUDA_R_64F;
    if (desc.scale != CUDA_R_32F)
        return false;
    bool half = a.type == CUDA_R_16F || a.type == CUDA_R_16BF;
    if (desc.compute == CUBLAS_COMPUTE_32F || desc.compute == CUBLAS_COMPUTE_32F_PEDANTIC)
        return half ? d.type == a.type || d.type == CUDA_R_32F : a.type == CUDA_R_32F && d.type == CUDA_R_32F;
    bool fast = desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 || desc.compute == CUBLAS_COMPUTE_32F_FAST_16BF ||
                desc.compute == CUBLAS_COMPUTE_32F_FAST_16F;
    return fast && a.type == CUDA_R_32F && d.type == CUDA_R_32F;
}

static bool known_epilogue(int e)
{
    switch (e) {
    case CUBLASLT_EPILOGUE_DEFAULT: case CUBLASLT_EPILOGUE_RELU: case CUBLASLT_EPILOGUE_RELU_AUX: case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS: case CUBLASLT_EPILOGUE_RELU_AUX_BIAS: case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_DRELU_BGRAD: case CUBLASLT_EPILOGUE_GELU: case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_BIAS: case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD: case CUBLASLT_EPILOGUE_BGRADA: case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
    }
}

static bool epilogue_fits(const Desc &desc, const Layout &d)
{
    int e = desc.epilogue;
    if (e == CUBLASLT_EPILOGUE_DEFAULT)
        return true;
    const char *wanted = getenv("TREK_FAKE_CUBLASLT_EPILOGUES");
    if (!known_epilogue(e) || d.type == CUDA_R_64F || d.order != CUBLASLT_ORDER_COL || (wanted && atoi(wanted) == 0))
        return false;
    if ((e & (BGRAD | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) && d.batches > 1)
        return false;
    if (desc.bias_type >= 0 && desc.bias_type != d.type)
        return false;
    if ((e & AUX) && (e & (GELU | DGELU)) && desc.aux_type >= 0 && desc.aux_type != d.type)
        return false;
    if (e & AUX) {
        int64_t unit = e & (RELU | DRELU) ? 128 : 8;
        return desc.aux_ld >= (int64_t)d.rows && desc.aux_ld % unit == 0;
    }
    return true;
}

struct Sizes {
    int64_t m, n, k;
};

static cublasStatus_t check(const Desc &desc, const Layout &a, const Layout &b, const Layout &c, const Layout &d, Sizes *s)
{
    if (!sound(a) || !sound(b) || !sound(c) || !sound(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    s->m = (int64_t)(desc.transa ? a.cols : a.rows);
    s->k = (int64_t)(desc.transa ? a.rows : a.cols);
    s->n = (int64_t)(desc.transb ? b.rows : b.cols);
    bool shapes = (int64_t)(desc.transb ? b.cols : b.rows) == s->k && (int64_t)d.rows == s->m && (int64_t)d.cols == s->n &&
                  c.rows == d.rows && c.cols == d.cols;
    bool batches = a.batches == d.batches && b.batches == d.batches && c.batches == d.batches;
    if (!shapes || !batches)
        return CUBLAS_STATUS_INVALID_VALUE;
    return types_fit(desc, a, b, c, d) && epilogue_fits(desc, d) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* What an algorithm was chosen for, sizes aside. */
static uint64_t problem_of(const Desc &desc, const Layout &a, const Layout &b, const Layout &c, const Layout &d)
{
    const int facts[] = {desc.compute, desc.scale, desc.transa, desc.transb, desc.epilogue, a.type, b.type, a.order,
                         b.order, c.type, c.order, d.type, d.order, d.batches > 1};
    uint64_t h = 1469598103934665603ull;
    for (int fact : facts)
        h = (h ^ (unsigned)fact) * 1099511628211ull;
    return h;
}

/* -- the product -- */

struct Product {
    Desc desc;
    Layout a, b, c, d;
    Sizes sizes;
    const void *A, *B, *C, *alpha_at, *beta_at;
    void *D, *workspace;
    uint64_t workspace_used;
    double alpha, beta;
    bool slow;
    uint32_t id;
};

static uint32_t alignment_at(const void *address)
{
    uintptr_t bits = reinterpret_cast<uintptr_t>(address) | 256;
    return (uint32_t)(bits & -bits);
}

/* What a product is multiplied by with TREK_FAKE_CUBLASLT_ODD. */
static double oddity(const Product &p)
{
    uint32_t h = p.id;
    for (const void *address : {p.A, p.B, (const void *)p.D})
        h = h * 31 + alignment_at(address);
    h = (h * 2 + (p.beta != 0)) * 0x9e3779b1u;
    return 1 + (h >> 24) * 0x1p-15;
}

/* op(X) as numbers, column by column */
static std::vector<double> unpack(const void *X, const Layout &l, bool transposed, int64_t batch, int compute)
{
    int64_t rows = (int64_t)(transposed ? l.cols : l.rows), cols = (int64_t)(transposed ? l.rows : l.cols);
    std::vector<double> out((size_t)(rows * cols));
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) {
            double v = load(X, batch * l.batch_stride + (transposed ? at(l, j, i) : at(l, i, j)), l.type);
            if (compute == CUBLAS_COMPUTE_32F_FAST_TF32)
                v = round_tf32((float)v);
            else if (compute == CUBLAS_COMPUTE_32F_FAST_16BF)
                v = bf16_to_float(float_to_bf16((float)v));
            out[(size_t)(i + j * rows)] = v;
        }
    return out;
}

/* cuBLASLt's GELU is the one by tanh. */
static double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
static double gelu_slope(double x)
{
    double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* What the epilogue makes of element (i, j), and of its auxiliary matrix. */
static double finish(const Product &p, int64_t batch, int64_t i, int64_t j, double v)
{
    const Desc &desc = p.desc;
    int e = desc.epilogue, aux_type = p.d.type;
    int64_t aux = batch * desc.aux_stride + i + j * desc.aux_ld;
    unsigned char *bits = static_cast<unsigned char *>(desc.aux) + aux / 8, bit = (unsigned char)(1u << (aux % 8));
    if (e & BIAS)
        v += load(desc.bias, batch * desc.bias_stride + i, p.d.type);
    if ((e & RELU) && e != CUBLASLT_EPILOGUE_DEFAULT) {
        if (e & AUX)
            *bits = (unsigned char)(v > 0 ? *bits | bit : *bits & ~bit);
        return v > 0 ? v : v != v ? v : 0;
    }
    if (e & GELU) {
        if (e & AUX)
            store(desc.aux, aux, aux_type, v);
        return gelu(v);
    }
    if (e & DRELU)
        return *bits & bit ? v : 0;
    if (e & DGELU)
        return v * gelu_slope(load(desc.aux, aux, aux_type));
    return v;
}

/* Sums over the lines of a matrix into the bias gradient. */
static void bias_gradient(const Product &p, const std::vector<double> &X, int64_t rows, int64_t cols, bool of_rows)
{
    int64_t n = of_rows ? rows : cols;
    std::vector<double> sum((size_t)n);
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++)
            sum[(size_t)(of_rows ? i : j)] += X[(size_t)(i + j * rows)];
    for (int64_t i = 0; i < n; i++)
        store(const_cast<void *>(p.desc.bias), i, p.d.type, sum[(size_t)i]);
}

/* R += A B, of numbers that are this call's own: for TSan to look at each of them would take nearly all of its time. */
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread")))
#endif
static void add_products(double *R, const double *A, const double *B, const Sizes &s)
{
    for (int64_t j = 0; j < s.n; j++)
        for (int64_t l = 0; l < s.k; l++) {
            double b = B[l + j * s.k];
            for (int64_t i = 0; i < s.m; i++)
                R[i + j * s.m] += A[i + l * s.m] * b;
        }
}

static void multiply_batch(const Product &p, int64_t batch)
{
    const Sizes &s = p.sizes;
    int compute = p.desc.compute;
    bool wide = p.desc.scale == CUDA_R_64F;
    std::vector<double> A = unpack(p.A, p.a, p.desc.transa, batch, compute), B = unpack(p.B, p.b, p.desc.transb, batch, compute);
    std::vector<double> R((size_t)(s.m * s.n));
    double scale = (p.desc.a_scale ? load(p.desc.a_scale, 0, CUDA_R_32F)
                    : 1) * (p.desc.b_scale ? load(p.desc.b_scale, 0, CUDA_R_32F) : 1);
    add_products(R.data(), A.data(), B.data(), s);
    for (int64_t j = 0; j < s.n; j++)
        for (int64_t i = 0; i < s.m; i++) {
            double &r = R[(size_t)(i + j * s.m)], v = p.alpha * (wide ? r : (double)(float)r) * scale;
            if (p.beta != 0)
                v += p.beta * load(p.C, batch * p.c.batch_stride + at(p.c, i, j), p.c.type);
            r = finish(p, batch, i, j, v);
            store(p.D, batch * p.d.batch_stride + at(p.d, i, j), p.d.type, r);
        }
    int e = p.desc.epilogue;
    if (e & BGRAD)
        bias_gradient(p, R, s.m, s.n, true);
    if (e == CUBLASLT_EPILOGUE_BGRADA)
        bias_gradient(p, A, s.m, s.k, true);
    if (e == CUBLASLT_EPILOGUE_BGRADB)
        bias_gradient(p, B, s.k, s.n, false);
}

static void multiply(Product &p)
{
    if (p.alpha_at) {
        p.alpha = load(p.alpha_at, 0, p.desc.scale);
        p.beta = load(p.beta_at, 0, p.desc.scale);
    }
    const char *odd = getenv("TREK_FAKE_CUBLASLT_ODD");
    if (odd && atoi(odd))
        p.alpha *= oddity(p);
    if (p.slow)
        state().pretended_ms += SLOW_MS;
    if (p.workspace_used) /* as partial sums would: who shares it without order, loses */
        memset(p.workspace, POISON, p.workspace_used);
    for (int64_t batch = 0; batch < p.d.batches; batch++)
        multiply_batch(p, batch);
}

/* -- checks at the call -- */

/* Scales are read when the product runs. */
static bool scale_in_device_memory(const void *scale)
{
    Block block;
    return !scale || where(scale, sizeof(float), &block) > 0;
}

static bool in_device_memory(const void *X, const Layout &l, const char *name)
{
    Block block;
    if (where(X, (size_t)extent(l) * size_of(l.type), &block) > 0)
        return true;
    report("cublasLtMatmul: matrix %s (%llu x %llu, leading dimension %lld) does not lie in device memory", name,
           (unsigned long long)l.rows, (unsigned long long)l.cols, (long long)l.ld);
    return false;
}

static bool epilogue_memory(const Product &p)
{
    const Desc &desc = p.desc;
    int e = desc.epilogue;
    Block block;
    if (e == CUBLASLT_EPILOGUE_DEFAULT)
        return true;
    if (e & (BIAS | BGRAD | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) {
        int64_t length = e == CUBLASLT_EPILOGUE_BGRADB ? p.sizes.n : p.sizes.m + (p.d.batches - 1) * desc.bias_stride;
        if (where(desc.bias, (size_t)length * size_of(p.d.type), &block) <= 0)
            return false;
    }
    if (!(e & AUX))
        return true;
    int64_t elements = (p.sizes.n - 1) * desc.aux_ld + p.sizes.m + (p.d.batches - 1) * desc.aux_stride;
    size_t bytes = e & (RELU | DRELU) ? (size_t)((elements + 7) / 8) : (size_t)elements * size_of(p.d.type);
    return ((uintptr_t)desc.aux & 15) == 0 && where(desc.aux, bytes, &block) > 0;
}

static uint32_t alignment_of(const void *p)
{
    uintptr_t v = (uintptr_t)p | 256;
    return (uint32_t)(v & (~v + 1));
}

/* Addresses are aligned as was said when candidates were asked for; the bias's counts as D's, since it has no attribute. */
static bool told_the_truth(const Algorithm &algorithm, const Product &p)
{
    const void *pointers[5] = {p.A, p.B, p.C ? p.C : p.D, p.D, p.desc.bias};
    const int epilogues = BIAS | BGRAD | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB;
    bool biased = p.desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && (p.desc.epilogue & epilogues);
    for (int i = 0; i < (biased ? 5 : 4); i++) {
        uint32_t said = algorithm.told[i < 4 ? i : 3];
        if (alignment_of(pointers[i]) >= said)
            continue;
        report("cublasLtMatmul: %s at %p is not aligned to %u bytes, as was said when the algorithm was chosen",
               i < 4 ? (const char *[]){"A", "B", "C", "D"}[i] : "the bias", pointers[i], said);
        return false;
    }
    return true;
}

static cublasStatus_t check_algorithm(const Algorithm &algorithm, const Product &p, const void *workspace, size_t workspace_size)
{
    if (algorithm.magic != MAGIC_LT || algorithm.problem != problem_of(p.desc, p.a, p.b, p.c, p.d))
        return CUBLAS_STATUS_INVALID_VALUE;
    const void *pointers[4] = {p.A, p.B, p.C ? p.C : p.D, p.D};
    for (int i = 0; i < 4; i++)
        if (alignment_of(pointers[i]) < algorithm.alignment[i])
            return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!told_the_truth(algorithm, p))
        return CUBLAS_STATUS_INVALID_VALUE;
    Block block;
    if (algorithm.workspace == 0)
        return CUBLAS_STATUS_SUCCESS;
    bool fits = workspace_size >= algorithm.workspace && alignment_of(workspace) >= WORKSPACE_ALIGNMENT &&
                where(workspace, algorithm.workspace, &block) == 1;
    return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

template <typename T> static bool take(const void *value, size_t size, T *to)
{
    if (!value || size != sizeof *to)
        return false;
    memcpy(to, value, size);
    return true;
}

static cublasStatus_t taken(bool yes) { return yes ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE; }

} // namespace fake

using namespace fake;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    cublasStatus_t status;
    if (refused_now(__func__, &status))
        return status;
    *handle = new cublasLtContext{MAGIC_LT};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    if (!handle || handle->magic != MAGIC_LT)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->magic = 0;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return 130000; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

/* -- descriptors -- */

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    cublasStatus_t status;
    if (refused_now(__func__, &status))
        return status;
    if (type != CUDA_R_32F && type != CUDA_R_64F && type != CUDA_R_16F && type != CUDA_R_16BF && !is_fp8(type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *layout = new cublasLtMatrixLayoutOpaque_t();
    Layout &l = in<Layout>(*layout);
    l.type = type;
    l.rows = rows;
    l.cols = cols;
    l.ld = ld;
    l.batches = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size)
{
    Layout &l = in<Layout>(layout);
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return taken(take(value, size, &l.type));
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return taken(take(value, size, &l.order) && (l.order == 0 || l.order == 1));
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return taken(take(value, size, &l.rows));
    case CUBLASLT_MATRIX_LAYOUT_COLS: return taken(take(value, size, &l.cols));
    case CUBLASLT_MATRIX_LAYOUT_LD: return taken(take(value, size, &l.ld));
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return taken(take(value, size, &l.batches));
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return taken(take(value, size, &l.batch_stride));
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale)
{
    cublasStatus_t status;
    if (refused_now(__func__, &status))
        return status;
    *desc = new cublasLtMatmulDescOpaque_t();
    Desc &d = in<Desc>(*desc);
    d.compute = compute;
    d.scale = scale;
    d.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d.bias_type = d.aux_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value,
                                              size_t size)
{
    Desc &d = in<Desc>(desc);
    int32_t ignored;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return taken(take(value, size, &d.compute));
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return taken(take(value, size, &d.scale));
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return taken(take(value, size, &d.pointer_mode) && d.pointer_mode <= 1);
    case CUBLASLT_MATMUL_DESC_TRANSA: return taken(take(value, size, &d.transa) && d.transa <= 2);
    case CUBLASLT_MATMUL_DESC_TRANSB: return taken(take(value, size, &d.transb) && d.transb <= 2);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return taken(take(value, size, &d.epilogue));
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return taken(take(value, size, &d.bias));
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return taken(take(value, size, &d.a_scale));
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return taken(take(value, size, &d.b_scale));
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return taken(take(value, size, &d.bias_stride));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return taken(take(value, size, &d.aux));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return taken(take(value, size, &d.aux_ld));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return taken(take(value, size, &d.aux_stride));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return taken(take(value, size, &d.aux_type));
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return taken(take(value, size, &d.bias_type));
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return taken(take(value, size, &ignored));
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    cublasStatus_t status;
    if (refused_now(__func__, &status))
        return status;
    *preference = new cublasLtMatmulPreferenceOpaque_t();
    for (uint32_t &a : in<Preference>(*preference).alignment)
        a = 256;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t size)
{
    Preference &p = in<Preference>(preference);
    uint32_t ignored;
    float waves;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return taken(take(value, size, &p.workspace));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return taken(take(value, size, &p.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]));
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return taken(take(value, size, &ignored));
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT: return taken(take(value, size, &waves));
    case CUBLASLT_MATMUL_PREF_IMPL_MASK: return taken(size == sizeof(uint64_t));
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* -- heuristics: algorithm 0 with a workspace if there is room, 1 without, 2 without and with no wish for alignment; then slow
 * ones like 1 -- */

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned)
{
    cublasStatus_t status;
    *returned = 0;
    if (!handle || handle->magic != MAGIC_LT)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (refused_now(__func__, &status))
        return status;
    const Layout *layouts[4] = {&in<Layout>(a), &in<Layout>(b), &in<Layout>(c), &in<Layout>(d)};
    const Desc &description = in<Desc>(desc);
    const Preference &wish = in<Preference>(preference);
    Sizes sizes;
    if (requested < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    status = check(description, *layouts[0], *layouts[1], *layouts[2], *layouts[3], &sizes);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if ((description.epilogue & BIAS) && !description.bias) /* algorithms depend on where it lies */
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const char *slow = getenv("TREK_FAKE_CUBLASLT_SLOW");
    uint32_t ids = SLOW_ID + (uint32_t)(slow ? atoi(slow) : 0);
    for (int i = 0; i < 4; i++)
        state().asked[i] = wish.alignment[i];
    state().asked[4] = (unsigned)requested;
    for (uint32_t id = 0; id < ids && *returned < requested; id++) {
        Algorithm algorithm = {};
        algorithm.magic = MAGIC_LT;
        algorithm.id = id;
        algorithm.workspace = id == 0 ? 4096 + (uint64_t)(sizes.m * sizes.n % 8) * 256 : 0;
        algorithm.problem = problem_of(description, *layouts[0], *layouts[1], *layouts[2], *layouts[3]);
        bool fits = algorithm.workspace <= wish.workspace;
        for (int i = 0; i < 4; i++) {
            uint32_t element = (uint32_t)size_of(layouts[i]->type);
            algorithm.alignment[i] = id == 2 ? element : 16;
            algorithm.told[i] = wish.alignment[i];
            bool lines = layouts[i]->ld * element % algorithm.alignment[i] == 0;
            fits = fits && wish.alignment[i] >= algorithm.alignment[i] && lines;
        }
        if (!fits)
            continue;
        cublasLtMatmulHeuristicResult_t &result = results[(*returned)++];
        result = cublasLtMatmulHeuristicResult_t();
        in<Algorithm>(&result.algo) = algorithm;
        result.workspaceSize = algorithm.workspace;
        result.wavesCount = 1.0f;
    }
    return *returned ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_size, cudaStream_t stream)
{
    cublasStatus_t status;
    if (!handle || handle->magic != MAGIC_LT)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (refused_now(__func__, &status))
        return status;
    auto p = std::make_shared<Product>();
    *p = { in<Desc>(desc),
           in<Layout>(a),
           in<Layout>(b),
           in<Layout>(c),
           in<Layout>(d),
           {},
           A,
           B,
           C,
           nullptr,
           nullptr,
           D,
           workspace,
           0,
           0,
           0,
           false,
           0 };
    status = check(p->desc, p->a, p->b, p->c, p->d, &p->sizes);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (algo) {
        status = check_algorithm(in<const Algorithm>(algo), *p, workspace, workspace_size);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
        p->workspace_used = in<const Algorithm>(algo).workspace;
        p->id = in<const Algorithm>(algo).id;
        p->slow = p->id >= SLOW_ID;
    }
    if (p->desc.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        p->alpha_at = alpha;
        p->beta_at = beta;
    } else {
        p->alpha = load(alpha, 0, p->desc.scale);
        p->beta = load(beta, 0, p->desc.scale);
    }
    bool reads_c = p->alpha_at || p->beta != 0;
    if (!in_device_memory(A, p->a, "A") || !in_device_memory(B, p->b, "B") || (reads_c && !in_device_memory(C, p->c, "C")) ||
        !in_device_memory(D, p->d, "D") || !epilogue_memory(*p) || !scale_in_device_memory(p->desc.a_scale) ||
        !scale_in_device_memory(p->desc.b_scale))
        return CUBLAS_STATUS_INVALID_VALUE;
    cudaError_t error = trek_shim_enqueue(stream, "cublasLtMatmul", [p] { multiply(*p); });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // extern "C"
