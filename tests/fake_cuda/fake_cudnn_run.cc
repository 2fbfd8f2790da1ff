/* SPDX-License-Identifier: Apache-2.0 */
/* An interpreter of cuDNN's operation graphs: each operation by plain loops in f64, each result
 * rounded to its tensor's type. What lies between operations lies by its strides, too, so that
 * a reshape is the same memory seen otherwise. */
#include "fake_cudnn.h"

#include <cmath>
#include <cstring>

#include "fake_number.h"

namespace fake {

size_t dnn_size_of(int type)
{
    return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ||
        type == CUDNN_DATA_INT32 ? 4 : type == CUDNN_DATA_BOOLEAN ? 1 : 2;
}

int64_t dnn_extent(const DnnTensor &t)
{
    int64_t last = 0;
    for (int d = 0; d < 4; d++)
        last += (t.sizes[d] - 1) * t.strides[d];
    return last + 1;
}

typedef std::array<int64_t, 4> Place;

static int64_t numel(const DnnTensor &t) { return t.sizes[0] * t.sizes[1] * t.sizes[2] * t.sizes[3]; }

static Place place_of(const DnnTensor &t, int64_t i)
{
    Place p;
    for (int d = 3; d >= 0; d--) {
        p[d] = i % t.sizes[d];
        i /= t.sizes[d];
    }
    return p;
}

/* -- shapes -- */

static bool broadcasts(const DnnTensorRef &from, const DnnTensor &to)
{
    for (int d = 0; from && d < 4; d++)
        if (from->sizes[d] != 1 && from->sizes[d] != to.sizes[d])
            return false;
    return true;
}

static bool pointwise_fits(const DnnOperation &o)
{
    bool two = o.mode == CUDNN_POINTWISE_ADD || o.mode == CUDNN_POINTWISE_MUL || o.mode == CUDNN_POINTWISE_DIV ||
        o.mode == CUDNN_POINTWISE_SUB || o.mode == CUDNN_POINTWISE_CMP_GE || o.mode == CUDNN_POINTWISE_BINARY_SELECT;
    bool truth = o.mode == CUDNN_POINTWISE_CMP_GE, chooses = o.mode == CUDNN_POINTWISE_BINARY_SELECT;
    if (two != !!o.b || chooses != !!o.t || truth != (o.y->type == CUDNN_DATA_BOOLEAN) ||
        (o.t && o.t->type != CUDNN_DATA_BOOLEAN))
        return false;
    if (o.mode == CUDNN_POINTWISE_GEN_INDEX && (o.axis < 0 || o.axis > 3 || o.y->type != CUDNN_DATA_INT32))
        return false;
    return broadcasts(o.x, *o.y) && broadcasts(o.b, *o.y) && broadcasts(o.t, *o.y);
}

static bool matmul_fits(const DnnOperation &o)
{
    const Place &a = o.x->sizes, &b = o.b->sizes, &c = o.y->sizes;
    return a[0] == c[0] && a[1] == c[1] && b[0] == c[0] && b[1] >= 1 && c[1] % b[1] == 0 && a[2] == c[2] && a[3] == b[2] &&
        b[3] == c[3];
}

static bool reduction_fits(const DnnOperation &o)
{
    for (int d = 0; d < 4; d++)
        if (o.x->sizes[d] % o.y->sizes[d] != 0)
            return false;
    return o.mode == CUDNN_REDUCE_TENSOR_ADD || o.mode == CUDNN_REDUCE_TENSOR_MAX;
}

/* x [N, C, H, W], w [K, C / groups, R, S], y [N, K, P, Q] of a convolution, whichever of them is the result. */
struct Images {
    const DnnTensor &x, &w, &y;
    explicit Images(const DnnOperation &o)
        : x(o.kind == DnnKind::conv_of_input ? *o.y : *o.x), w(o.kind == DnnKind::conv_of_weight ? *o.y : *o.b),
          y(o.kind == DnnKind::conv ? *o.y : o.kind == DnnKind::conv_of_input ? *o.x : *o.b)
    {
    }
};

static bool conv_fits(const DnnOperation &o)
{
    Images i(o);
    const Place &x = i.x.sizes, &w = i.w.sizes, &y = i.y.sizes;
    bool fits = x[0] == y[0] && w[0] == y[1] && x[1] % w[1] == 0 && y[1] % (x[1] / w[1]) == 0;
    for (size_t d = 0; d < 2; d++)
        fits = fits && o.stride[d] >= 1 && o.dilation[d] >= 1 && o.padding[d] >= 0 &&
            y[2 + d] == (x[2 + d] + 2 * o.padding[d] - o.dilation[d] * (w[2 + d] - 1) - 1) / o.stride[d] + 1;
    return fits;
}

bool dnn_fits(const DnnOperation &o)
{
    if (!o.x || !o.y)
        return false;
    switch (o.kind) {
    case DnnKind::pointwise: return pointwise_fits(o);
    case DnnKind::matmul: return o.b && matmul_fits(o);
    case DnnKind::reduction: return reduction_fits(o);
    case DnnKind::conv:
    case DnnKind::conv_of_input:
    case DnnKind::conv_of_weight: return o.b && conv_fits(o);
    default: return numel(*o.x) == numel(*o.y); /* reshape */
    }
}

/* -- elements -- */

static double load(const void *base, int64_t i, int type)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE: return static_cast<const double *>(base)[i];
    case CUDNN_DATA_FLOAT: return static_cast<const float *>(base)[i];
    case CUDNN_DATA_INT32: return static_cast<const int32_t *>(base)[i];
    case CUDNN_DATA_BOOLEAN: return static_cast<const unsigned char *>(base)[i];
    case CUDNN_DATA_HALF: return f16_to_float(static_cast<const uint16_t *>(base)[i]);
    default: return bf16_to_float(static_cast<const uint16_t *>(base)[i]);
    }
}

static void store(void *base, int64_t i, int type, double v)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE: static_cast<double *>(base)[i] = v; break;
    case CUDNN_DATA_FLOAT: static_cast<float *>(base)[i] = (float)v; break;
    case CUDNN_DATA_INT32: static_cast<int32_t *>(base)[i] = (int32_t)v; break;
    case CUDNN_DATA_BOOLEAN: static_cast<unsigned char *>(base)[i] = v != 0; break;
    case CUDNN_DATA_HALF: static_cast<uint16_t *>(base)[i] = float_to_f16((float)v); break;
    default: static_cast<uint16_t *>(base)[i] = float_to_bf16((float)v); break;
    }
}

/* Memory of all tensors while a graph runs. */
class Memory {
public:
    explicit Memory(const DnnRun &run) : run_(run) {}

    double get(const DnnTensor &t, const Place &p)
    {
        if (t.by_value)
            return run_.values.at(t.number);
        int64_t at = 0;
        for (int d = 0; d < 4; d++)
            at += (t.sizes[d] == 1 ? 0 : p[d]) * t.strides[d];
        return load(base(t), at, t.type);
    }
    void put(const DnnTensor &t, const Place &p, double v)
    {
        int64_t at = 0;
        for (int d = 0; d < 4; d++)
            at += p[d] * t.strides[d];
        store(base(t), at, t.type, v);
    }
    /* y is x's memory, converted where the types differ. */
    void see(const DnnTensor &x, const DnnTensor &y)
    {
        int64_t n = dnn_extent(x);
        auto &to = between_[y.number];
        to.assign((size_t)n * dnn_size_of(y.type), (char)POISON);
        for (int64_t i = 0; i < n; i++)
            store(to.data(), i, y.type, load(base(x), i, x.type));
    }

private:
    void *base(const DnnTensor &t)
    {
        if (!t.between)
            return run_.addresses.at(t.number);
        auto &memory = between_[t.number];
        if (memory.empty())
            memory.assign((size_t)dnn_extent(t) * dnn_size_of(t.type), (char)POISON);
        return memory.data();
    }
    const DnnRun &run_;
    std::map<int64_t, std::vector<char>> between_;
};

/* -- operations -- */

static double point(const DnnOperation &o, const Place &p, double x, double b, double t)
{
    switch (o.mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_RELU_FWD: return x < 0 ? 0 : x;
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_GEN_INDEX: return (double)p[(size_t)o.axis];
    default: return t != 0 ? x : b; /* BINARY_SELECT */
    }
}

static void pointwise(Memory &m, const DnnOperation &o)
{
    for (int64_t i = 0; i < numel(*o.y); i++) {
        Place p = place_of(*o.y, i);
        double x = o.mode == CUDNN_POINTWISE_GEN_INDEX ? 0 : m.get(*o.x, p);
        m.put(*o.y, p, point(o, p, x, o.b ? m.get(*o.b, p) : 0, o.t ? m.get(*o.t, p) : 0));
    }
}

static void matmul(Memory &m, const DnnOperation &o)
{
    int64_t group = o.y->sizes[1] / o.b->sizes[1];
    for (int64_t i = 0; i < numel(*o.y); i++) {
        Place p = place_of(*o.y, i);
        double sum = 0;
        for (int64_t k = 0; k < o.x->sizes[3]; k++)
            sum += m.get(*o.x, { p[0], p[1], p[2], k }) * m.get(*o.b, { p[0], p[1] / group, k, p[3] });
        m.put(*o.y, p, sum);
    }
}

static void reduction(Memory &m, const DnnOperation &o)
{
    for (int64_t i = 0; i < numel(*o.y); i++) {
        Place p = place_of(*o.y, i);
        Place sizes, first;
        int64_t n = 1;
        for (size_t d = 0; d < 4; d++) {
            sizes[d] = o.x->sizes[d] / o.y->sizes[d];
            first[d] = p[d] * sizes[d];
            n *= sizes[d];
        }
        double a = o.mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;
        for (int64_t k = 0; k < n; k++) {
            Place at = first;
            int64_t rest = k;
            for (size_t d = 4; d-- > 0;) {
                at[d] += rest % sizes[d];
                rest /= sizes[d];
            }
            double x = m.get(*o.x, at);
            a = o.mode == CUDNN_REDUCE_TENSOR_ADD ? a + x : x > a || x != x ? x : a;
        }
        m.put(*o.y, p, a);
    }
}

/* To the 10 bits of TF32. */
static double rounded(double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x0fff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&f, &bits, sizeof f);
    return std::isfinite(v) ? f : v;
}

/* Every product of a pixel of x and an element of w adds to y, or to the one of the three that is the result. */
static void convolution(Memory &m, const DnnOperation &o, bool rounds)
{
    Images i(o);
    std::vector<double> sums((size_t)numel(*o.y), 0.0);
    auto at = [&](const Place &p) {
        return (size_t)(((p[0] * o.y->sizes[1] + p[1]) * o.y->sizes[2] + p[2]) * o.y->sizes[3] + p[3]);
    };
    auto factor = [&](const DnnTensor &t, const Place &p) {
        double v = m.get(t, p);
        return rounds && t.type == CUDNN_DATA_FLOAT ? rounded(v) : v;
    };
    int64_t groups = i.x.sizes[1] / i.w.sizes[1], filters = i.w.sizes[0] / groups;
    for (int64_t place = 0; place < numel(i.y); place++)
        for (int64_t tap = 0; tap < i.w.sizes[1] * i.w.sizes[2] * i.w.sizes[3]; tap++) {
            Place q = place_of(i.y, place);
            int64_t u = tap % i.w.sizes[3], v = tap / i.w.sizes[3] % i.w.sizes[2], c = tap / (i.w.sizes[3] * i.w.sizes[2]);
            Place p = { q[0], q[1] / filters * i.w.sizes[1] + c, q[2] * o.stride[0] - o.padding[0] + v * o.dilation[0],
                        q[3] * o.stride[1] - o.padding[1] + u * o.dilation[1] }, k = { q[1], c, v, u };
            if (p[2] < 0 || p[3] < 0 || p[2] >= i.x.sizes[2] || p[3] >= i.x.sizes[3])
                continue;
            if (o.kind == DnnKind::conv)
                sums[at(q)] += factor(i.x, p) * factor(i.w, k);
            else if (o.kind == DnnKind::conv_of_input)
                sums[at(p)] += factor(i.y, q) * factor(i.w, k);
            else
                sums[at(k)] += factor(i.x, p) * factor(i.y, q);
        }
    for (int64_t e = 0; e < numel(*o.y); e++)
        m.put(*o.y, place_of(*o.y, e), sums[(size_t)e]);
}

void dnn_run(const DnnRun &run)
{
    if (run.workspace_bytes)
        memset(run.workspace, POISON, run.workspace_bytes);
    Memory memory(run);
    for (const DnnOperation &o : run.graph->operations) {
        switch (o.kind) {
        case DnnKind::pointwise: pointwise(memory, o); break;
        case DnnKind::matmul: matmul(memory, o); break;
        case DnnKind::reduction: reduction(memory, o); break;
        case DnnKind::reshape: memory.see(*o.x, *o.y); break;
        default: convolution(memory, o, run.rounds); break;
        }
        if (run.wrong && !o.y->between)
            for (int64_t i = 0; i < numel(*o.y); i++) {
                Place p = place_of(*o.y, i);
                memory.put(*o.y, p, memory.get(*o.y, p) + 1);
            }
    }
}

} // namespace fake
