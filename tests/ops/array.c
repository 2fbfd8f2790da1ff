/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of the references, and dtypes as the tests understand them: nothing
 * here is shared with the library's own conversions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"

void array_make(op_array *a, trek_dtype dtype, int ndim, const int64_t *sizes)
{
    memset(a, 0, sizeof *a);
    a->dtype = dtype;
    a->ndim = ndim;
    a->numel = 1;
    for (int d = 0; d < ndim; d++) {
        a->sizes[d] = sizes[d];
        a->numel *= sizes[d];
    }
    a->v = calloc((size_t)a->numel + 1, sizeof *a->v);
    if (!a->v)
        exit(99);
}

void array_like(op_array *a, const op_array *b, trek_dtype dtype)
{
    array_make(a, dtype, b->ndim, b->sizes);
}

void array_scaled(op_array *a)
{
    a->scale = calloc((size_t)a->numel + 1, sizeof *a->scale);
    if (!a->scale)
        exit(99);
}

void array_free(op_array *a)
{
    free(a->v);
    free(a->scale);
    memset(a, 0, sizeof *a);
}

bool dtype_floats(trek_dtype dtype)
{
    return dtype == TREK_F32 || dtype == TREK_F64 || dtype == TREK_BF16 || dtype == TREK_F16;
}

static double wrapped(double value, double range, double low)
{
    double r = fmod(value - low, range);
    return (r < 0 ? r + range : r) + low;
}

void array_set(op_array *a, int64_t i, double value)
{
    switch (a->dtype) {
    case TREK_BOOL: a->v[i] = value != 0; break;
    case TREK_U8: a->v[i] = wrapped(trunc(value), 256, 0); break;
    case TREK_I32: a->v[i] = wrapped(trunc(value), 4294967296.0, -2147483648.0); break;
    case TREK_I64: a->v[i] = trunc(value); break;
    default: a->v[i] = value;
    }
}

int64_t array_index(const op_array *a, const int64_t *index)
{
    int64_t at = 0;
    for (int d = 0; d < a->ndim; d++)
        at = at * a->sizes[d] + index[d];
    return at;
}

bool array_next(int64_t *index, int ndim, const int64_t *sizes)
{
    for (int d = ndim - 1; d >= 0; d--) {
        if (++index[d] < sizes[d])
            return true;
        index[d] = 0;
    }
    return false;
}

int64_t array_broadcast_index(const op_array *a, const int64_t *index, int ndim)
{
    int64_t at = 0;
    for (int d = 0; d < a->ndim; d++) {
        int64_t i = index[ndim - a->ndim + d];
        at = at * a->sizes[d] + (a->sizes[d] == 1 ? 0 : i);
    }
    return at;
}

/* 2^n for -1023 < n < 1024: ldexp would be a good part of the suite's time. */
static double power_of_two(int n)
{
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Nearest value with `digits` bits of mantissa and exponents from `smallest` (of the last denormal bit); even on ties. */
static double rounded(double x, int digits, int smallest, double limit)
{
    if (x == 0 || isnan(x) || isinf(x))
        return x;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52 & 2047) - 1022; /* of a mantissa in [0.5, 1); f64's denormals are below every `smallest` */
    int bit = exponent - digits > smallest ? exponent - digits : smallest;
    double y = rint(x * power_of_two(-bit)) * power_of_two(bit);
    return fabs(y) > limit ? copysign(INFINITY, x) : y;
}

double dtype_round(trek_dtype dtype, double value)
{
    switch (dtype) {
    case TREK_F32: return (double)(float)value;
    case TREK_BF16: return rounded(value, 8, -133, 0x1.fep127);
    case TREK_F16: return rounded(value, 11, -24, 65504);
    default: return value;
    }
}

trek_dtype dtype_promote(trek_dtype a, trek_dtype b)
{
    /* PyTorch's table, for tensors that both have dimensions */
    enum { f = TREK_F32, d = TREK_F64, g = TREK_BF16, h = TREK_F16, l = TREK_I64, i = TREK_I32, u = TREK_U8, t = TREK_BOOL };
    static const unsigned char table[8][8] = {
        /*         f32 f64 bf16 f16 i64 i32 u8 bool */
        [f] = { f, d, f, f, f, f, f, f }, [d] = { d, d, d, d, d, d, d, d }, [g] = { f, d, g, f, g, g, g, g },
        [h] = { f, d, f, h, h, h, h, h }, [l] = { f, d, g, h, l, l, l, l }, [i] = { f, d, g, h, l, i, i, i },
        [u] = { f, d, g, h, l, i, u, u }, [t] = { f, d, g, h, l, i, u, t },
    };
    return (trek_dtype)table[a][b];
}

static double half_to_double(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent ? (1024 + mantissa) * power_of_two(exponent - 25) : mantissa * 0x1p-24);
}

static double element_at(const char *at, trek_dtype dtype)
{
    switch (dtype) {
    case TREK_F32: { float x; memcpy(&x, at, 4); return x; }
    case TREK_F64: { double x; memcpy(&x, at, 8); return x; }
    case TREK_BF16: { uint16_t x; memcpy(&x, at, 2); uint32_t w = (uint32_t)x << 16; float y; memcpy(&y, &w, 4); return y; }
    case TREK_F16: { uint16_t x; memcpy(&x, at, 2); return half_to_double(x); }
    case TREK_I64: { int64_t x; memcpy(&x, at, 8); return (double)x; }
    case TREK_I32: { int32_t x; memcpy(&x, at, 4); return x; }
    default: return *(const unsigned char *)at;
    }
}

static uint16_t half_from_double(double x) /* x is one of its values */
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    if (isinf(x))
        return (uint16_t)(sign | 0x7c00);
    x = fabs(x);
    if (x < 0x1p-14)
        return (uint16_t)(sign | (uint16_t)ldexp(x, 24));
    int exponent;
    double m = frexp(x, &exponent);
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)ldexp(m, 11) & 1023));
}

static void element_put(char *at, trek_dtype dtype, double value)
{
    double x = dtype_round(dtype, value);
    switch (dtype) {
    case TREK_F32: { float y = (float)x; memcpy(at, &y, 4); break; }
    case TREK_F64: memcpy(at, &x, 8); break;
    case TREK_BF16: {
        float y = (float)x;
        uint32_t w;
        memcpy(&w, &y, 4);
        uint16_t h = (uint16_t)(w >> 16);
        memcpy(at, &h, 2);
        break;
    }
    case TREK_F16: { uint16_t h = half_from_double(x); memcpy(at, &h, 2); break; }
    case TREK_I64: { int64_t y = (int64_t)x; memcpy(at, &y, 8); break; }
    case TREK_I32: { int32_t y = (int32_t)x; memcpy(at, &y, 4); break; }
    default: *(unsigned char *)at = (unsigned char)x;
    }
}

static const int64_t dtype_bytes[TREK_DTYPE_COUNT] = { 4, 8, 2, 2, 8, 4, 1, 1 };

/* --- tensors of any device ------------------------------------------------------ */

/* The bytes from a tensor's lowest element to its highest, in host memory: its own there, else a copy. */
typedef struct host_span {
    char *first;          /* the host's element 0 of the tensor */
    char *copy, *device;  /* of the lowest element; NULL in host memory */
    size_t bytes;
} host_span;

static trek_status span_copy(const trek_tensor *t, const host_span *s, bool back)
{
    const trek_backend *backend = trek_backend_get(t->device.type);
    trek_device host = trek_cpu(0);
    trek_status status = back ? backend->copy_bytes(s->device, t->device, s->copy, host, s->bytes, NULL)
                              : backend->copy_bytes(s->copy, host, s->device, t->device, s->bytes, NULL);
    trek_status ended = backend->sync(t->device);
    return status == TREK_OK ? ended : status;
}

static bool span_open(const trek_tensor *t, host_span *s)
{
    int64_t low = 0, high = 0, size = dtype_bytes[t->dtype];
    *s = (host_span){ .first = t->data };
    if (t->device.type == TREK_CPU)
        return true;
    for (int d = 0; d < t->ndim; d++)
        *(t->strides[d] < 0 ? &low : &high) += (t->sizes[d] - 1) * t->strides[d];
    s->bytes = (size_t)((high - low + 1) * size);
    s->device = t->data + low * size;
    s->copy = malloc(s->bytes);
    if (!s->copy)
        exit(99);
    s->first = s->copy - low * size;
    return span_copy(t, s, false) == TREK_OK;
}

/* A line along the last dimension; of f32, most of what is read and written, without asking for the dtype of each. */
static void line_read(double *v, const char *at, int64_t step, int64_t count, trek_dtype dtype)
{
    if (dtype == TREK_F32)
        for (int64_t i = 0; i < count; i++)
            v[i] = *(const float *)(const void *)(at + i * step);
    else
        for (int64_t i = 0; i < count; i++)
            v[i] = element_at(at + i * step, dtype);
}

static void line_write(const double *v, char *at, int64_t step, int64_t count, trek_dtype dtype)
{
    if (dtype == TREK_F32)
        for (int64_t i = 0; i < count; i++)
            *(float *)(void *)(at + i * step) = (float)v[i];
    else
        for (int64_t i = 0; i < count; i++)
            element_put(at + i * step, dtype, v[i]);
}

/* Calls `read` or `write` for each line of the tensor, whose values are v. */
static void lines_of(const trek_tensor *t, double *v, char *first, bool write)
{
    trek_dtype dtype = (trek_dtype)t->dtype;
    int64_t index[TREK_MAX_DIMS] = { 0 }, bytes = dtype_bytes[dtype];
    int outer = t->ndim > 0 ? t->ndim - 1 : 0;
    int64_t count = t->ndim > 0 ? t->sizes[outer] : 1, step = t->ndim > 0 ? t->strides[outer] * bytes : 0;
    do {
        int64_t at = 0;
        for (int d = 0; d < outer; d++)
            at += index[d] * t->strides[d];
        if (write)
            line_write(v, first + at * bytes, step, count, dtype);
        else
            line_read(v, first + at * bytes, step, count, dtype);
        v += count;
    } while (array_next(index, outer, t->sizes));
}

void array_read(op_array *a, const trek_tensor *t)
{
    array_make(a, (trek_dtype)t->dtype, t->ndim, t->sizes);
    host_span span;
    if (a->numel == 0)
        return;
    if (span_open(t, &span))
        lines_of(t, a->v, span.first, false);
    else
        for (int64_t i = 0; i < a->numel; i++)
            a->v[i] = NAN;
    free(span.copy);
}

void array_write(const op_array *a, trek_tensor *t)
{
    host_span span;
    if (a->numel == 0 || !span_open(t, &span))
        return;
    lines_of(t, a->v, span.first, true);
    if (span.copy)
        span_copy(t, &span, true);
    free(span.copy);
}

/* --- values ------------------------------------------------------------------ */

static uint64_t hash64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t hashed(uint64_t seed) { return hash64(seed + 0x9e3779b97f4a7c15u); }

static double unit_of(uint64_t hash, uint64_t i) { return (double)(hash64(hash + i * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53; }

double hash_unit(uint64_t seed, uint64_t i) { return unit_of(hashed(seed), i); }

static double whole(double u, double low, double high)
{
    return low + floor(u * (high - low + 1));
}

static double integer_value(op_domain domain, trek_dtype dtype, double u, int64_t limit)
{
    bool is_signed = dtype == TREK_I64 || dtype == TREK_I32;
    if (dtype == TREK_BOOL)
        return domain == D_POSITIVE || domain == D_NONZERO ? 1 : u < 0.5;
    switch (domain) {
    case D_POSITIVE: return whole(u, 1, 6);
    case D_UNIT: return whole(u, is_signed ? -1 : 0, 1);
    case D_ABOVE_M1: return whole(u, 0, 9);
    case D_ABOVE_1: return whole(u, 2, 9);
    case D_NONZERO: return is_signed && u < 0.5 ? -whole(2 * u, 1, 7) : whole(u < 0.5 ? 2 * u : 2 * u - 1, 1, 7);
    case D_EXPONENT: return whole(u, 0, 3);
    case D_INDEX: return limit > 0 ? whole(u, 0, (double)limit - 1) : 0;
    case D_BINARY: return u < 0.5;
    default: return whole(u, is_signed ? -9 : 0, 9);
    }
}

/* hashes: of the seed, and of another one where a domain needs two numbers */
static double domain_value(const op_input *in, trek_dtype dtype, const uint64_t *hashes, uint64_t i)
{
    double u = unit_of(hashes[0], i), w = in->domain == D_NONZERO || in->domain == D_OFFGRID ? unit_of(hashes[1], i) : 0;
    if (in->domain == D_OFFSETS)
        return in->shape.sizes[0] > 1 ? floor((double)in->limit * pow((double)i / (double)(in->shape.sizes[0] - 1), 1.5)) : 0;
    if (!dtype_floats(dtype))
        return integer_value(in->domain, dtype, u, in->limit);
    switch (in->domain) {
    case D_POSITIVE: return 0.3 + 2.7 * u;
    case D_UNIT: return -0.9 + 1.8 * u;
    case D_ABOVE_M1: return -0.8 + 2.8 * u;
    case D_ABOVE_1: return 1.6 + 2 * u;
    case D_NONZERO: return (w < 0.5 ? -1 : 1) * (0.3 + 1.7 * u);
    case D_OFFGRID: return whole(w, -3, 3) + 0.2 + 0.6 * u;
    case D_WIDE: return -20 + 40 * u;
    case D_EXPONENT: return -1.5 + 4 * u;
    case D_INDEX: return in->limit > 0 ? whole(u, 0, (double)in->limit - 1) : 0;
    case D_BINARY: return u < 0.5;
    case D_RSTD: return 0.5 + 1.5 * u;
    case D_PROBABILITY: return 0.02 + 0.96 * u;
    default: return -2 + 4 * u;
    }
}

static double special_value(trek_dtype dtype, op_special kind, uint64_t i)
{
    static const double finite[] = { NAN, -0.0, 0.0, 1e-41, -1e-41, 6e-8, 1e-300, 0.5, -0.5, 1.5, -2.5, 1.0, -1.0, 2.5 };
    static const double huge[] = { INFINITY, -INFINITY, 3e38, -3e38, 65504.0, 1e300, -1e-320, 88.9, -104.0, 1e5 };
    (void)dtype;
    enum { n_finite = sizeof finite / sizeof *finite, n_huge = sizeof huge / sizeof *huge };
    uint64_t k = i % (kind == SPECIAL_ALL ? n_finite + n_huge : n_finite);
    return k < n_finite ? finite[k] : huge[k - n_finite];
}

static void layout_strides(const op_input *in, op_layout layout, int64_t *strides, int64_t *offset, int64_t *count)
{
    int ndim = in->shape.ndim;
    int64_t step = layout == LAYOUT_STEPPED || layout == LAYOUT_NEGATIVE ? 2 : 1, at = step;
    bool expanded = layout != LAYOUT_EXPANDED;
    if (layout == LAYOUT_TRANSPOSED) {
        for (int d = 0; d < ndim; d++, at *= in->shape.sizes[d - 1])
            strides[d] = at;
    } else if (layout == LAYOUT_LAST && ndim > 2) { /* dimension 1 innermost, then the last to the third, then the first */
        for (int k = 0; k < ndim; k++) {
            int d = k == 0 ? 1 : k == ndim - 1 ? 0 : ndim - k;
            strides[d] = at;
            at *= in->shape.sizes[d];
        }
    } else {
        for (int d = ndim - 1; d >= 0; d--) {
            if (!expanded && in->shape.sizes[d] > 1) {
                strides[d] = 0;
                expanded = true;
                continue;
            }
            strides[d] = at;
            at *= in->shape.sizes[d];
        }
    }
    *count = at > 0 ? at : 1;
    *offset = 0;
    for (int d = 0; d < ndim && layout == LAYOUT_NEGATIVE; d++) {
        if (in->shape.sizes[d] > 1)
            *offset += (in->shape.sizes[d] - 1) * strides[d];
        strides[d] = -strides[d];
    }
}

trek_dtype input_dtype(const op_input *in, trek_dtype dtype)
{
    if (in->dtype == DTYPE_STATISTICS && (dtype == TREK_BF16 || dtype == TREK_F16))
        return TREK_F32;
    return in->dtype < 0 ? dtype : (trek_dtype)in->dtype;
}

trek_tensor *suite_tensor(const op_input *in, trek_dtype dtype, op_layout layout, uint64_t seed)
{
    if (in->absent)
        return NULL;
    trek_dtype own = input_dtype(in, dtype);
    int64_t strides[TREK_MAX_DIMS] = { 0 }, offset, count;
    layout_strides(in, in->plain ? LAYOUT_PLAIN : layout, strides, &offset, &count);
    trek_tensor *base = trek_tensor_make(1, &count, own, test_device());
    if (!base)
        return NULL;
    op_array values;
    array_make(&values, own, 1, &count);
    const uint64_t hashes[2] = { hashed(seed), hashed(seed ^ 0x55aa) };
    for (int64_t i = 0; i < count; i++) {
        values.v[i] = domain_value(in, own, hashes, (uint64_t)i);
        if (in->special && dtype_floats(own) && in->limit)
            values.v[i] = special_value(own, (op_special)in->limit, (uint64_t)i * (1 + seed % 5) + seed % 3);
    }
    array_write(&values, base);
    array_free(&values);
    trek_tensor *t = trek_tensor_make_view(base, base->data + offset * dtype_bytes[own], in->shape.ndim, in->shape.sizes,
                                           strides);
    trek_tensor_release(base);
    return t;
}

/* --- comparing --------------------------------------------------------------- */

/* CUDA's functions of f32 and f64 are documented to be off by a few more units than the host's (tan, pow, atan2 by up to 4). */
static double math_factor(void)
{
    return test_on_cpu() ? 1 : 2;
}

static double tolerance_of(trek_dtype dtype, op_tolerance tolerance)
{
    /* relative to the value (or the size of the terms); of 16-bit dtypes 1 or 2 units in the last place */
    switch (dtype) {
    case TREK_F32:
        return tolerance == T_EXACT ? 0 : tolerance == T_MATH ? 1.5e-6 * math_factor() : tolerance == T_CONV ? 16e-6 : 4e-6;
    case TREK_F64: return tolerance == T_EXACT ? 0 : tolerance == T_MATH ? 2e-14 * math_factor() : 1e-13;
    case TREK_BF16: return tolerance == T_EXACT ? 0x1p-8 : 0x1p-7;
    case TREK_F16: return tolerance == T_EXACT ? 0x1p-11 : 0x1p-10;
    default: return 0;
    }
}

/* What is allowed at a true value of 0: functions like sin and log cross it, sums cancel. */
static double floor_of(trek_dtype dtype, op_tolerance tolerance)
{
    static const double smallest[TREK_DTYPE_COUNT] = { 0x1p-149, 0x1p-1074, 0x1p-133, 0x1p-24 };
    if (tolerance == T_EXACT || !dtype_floats(dtype))
        return dtype == TREK_BF16 || dtype == TREK_F16 ? smallest[dtype] : 0;
    return dtype == TREK_F64 ? 1e-15 : dtype == TREK_F32 ? 2e-7 : 1e-6;
}

void array_compare(op_report *r, const char *what, const op_array *want, const trek_tensor *got, op_tolerance tolerance)
{
    char have[TREK_SHAPE_TEXT], ask[TREK_SHAPE_TEXT];
    r->checks++;
    if (got->dtype != want->dtype || got->ndim != want->ndim ||
        memcmp(got->sizes, want->sizes, sizeof(int64_t) * (size_t)want->ndim) != 0) {
        report_fail(r, "%s is %s %s, should be %s %s", what, trek_dtype_name((trek_dtype)got->dtype),
                    trek_tensor_shape_text(got, have), trek_dtype_name(want->dtype),
                    trek_shape_format(trek_shape_make(want->sizes, want->ndim), ask, sizeof ask));
        return;
    }
    op_array a;
    array_read(&a, got);
    if (trek_error_status() != TREK_OK) /* the device reports it when it is read */
        report_fail(r, "%s cannot be read: %s: %s", what, trek_status_name(trek_error_status()), trek_error());
    double relative = tolerance_of(want->dtype, tolerance), absolute = floor_of(want->dtype, tolerance);
    for (int64_t i = 0; i < a.numel && tolerance != T_RANDOM; i++) {
        double g = a.v[i], w = want->v[i];
        if (w == g) /* which is one of its dtype's numbers */
            continue;
        w = dtype_round(want->dtype, w);
        if ((isnan(w) && isnan(g)) || w == g)
            continue;
        double size = fmax(fabs(w), want->scale ? want->scale[i] : 0);
        if (fabs(w - g) <= relative * size + absolute && isfinite(w) && isfinite(g))
            continue;
        /* the largest finite number and infinity are neighbours */
        if (relative > 0 && dtype_round(want->dtype, want->v[i] * (1 + 2 * relative)) == g && isinf(g))
            continue;
        if (relative > 0 && isinf(w) && fabs(g) < INFINITY && isinf(dtype_round(want->dtype, g * (1 + 2 * relative))))
            continue;
        report_fail(r, "%s, element %lld of %lld: %.17g, should be %.17g", what, (long long)i, (long long)a.numel, g, w);
        break;
    }
    array_free(&a);
}

void suite_poison(void)
{
    enum { EACH = 6 };
    static const int64_t sizes[] = { 4, 16, 24, 48, 96, 160, 256, 512, 1024 };
    if (!test_on_cpu())
        return; /* where every fill is a kernel, this is most of the time */
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        trek_tensor *tensors[EACH];
        void *blocks[EACH];
        for (int i = 0; i < EACH; i++) {
            tensors[i] = trek_tensor_full(trek_dims(sizes[k]), NAN, TREK_F32, test_device());
            blocks[i] = trek_block_alloc((size_t)sizes[k] * 4);
            if (blocks[i])
                memset(blocks[i], 0xff, (size_t)sizes[k] * 4);
        }
        for (int i = 0; i < EACH; i++) {
            trek_tensor_release(tensors[i]);
            trek_block_free(blocks[i]);
        }
    }
}
