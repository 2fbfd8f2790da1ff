/* SPDX-License-Identifier: Apache-2.0 */
/* Muon: momentum whose matrices are made orthogonal (Jordan and others, 2024; Liu and others, "Muon is scalable for
 * LLM training", 2025). The formulas are torch.optim.Muon's, except that products are computed in the parameters'
 * precision and not in bf16. Groups of parameters that are not hidden matrices use AdamW. */
#include "optim/class_internal.h"
#include "optim/optimizer.h"
#include "optim/optimizers.h"

enum { LR, WEIGHT_DECAY, MOMENTUM, PLAIN, A, B, C, EPS, STEPS, ADJUST, ADAM, BETA1, BETA2 };
enum { BUFFER, SQUARE, WAY }; /* states; the direction is in scratch memory */

/* --- the matrices' momentum ------------------------------------------------------------- */

enum { N_FAR, N_WEIGHT, N_NESTEROV, N_LATE, N_AHEAD };

/* buffer = lerp(buffer, d, 1 - momentum), way = lerp(d, buffer, momentum), each from the nearer end as torch.lerp
 * does. */
TREK_UPDATE_NUMBERS(muon)
{
    double momentum = s->options[MOMENTUM];
    n[N_FAR] = momentum <= 0.5;
    n[N_WEIGHT] = momentum <= 0.5 ? -momentum : 1 - momentum;
    n[N_NESTEROV] = s->options[PLAIN] == 0;
    n[N_LATE] = momentum >= 0.5;
    n[N_AHEAD] = momentum >= 0.5 ? -(1 - momentum) : momentum;
    return 0;
}

TREK_UPDATE_ELEMENT(muon, 3, 5, 1, {
    T moving = (n[N_FAR] != 0 ? d : s[BUFFER]) + n[N_WEIGHT] * (d - s[BUFFER]);
    moving *= (T)(trek_magnitude(moving) >= TREK_LEAST); /* as in Adam */
    T ahead = (n[N_LATE] != 0 ? moving : d) + n[N_AHEAD] * (moving - d);
    s[WAY] = n[N_NESTEROV] != 0 ? ahead : moving;
    s[BUFFER] = moving;
})

/* --- other parameters: AdamW, whose mean is the buffer ------------------------------------ */

enum { N_KEEP, N_MEAN_FAR, N_MEAN_WEIGHT, N_BETA2, N_REST2, N_STEP, N_CORRECTION, N_EPS };

TREK_UPDATE_NUMBERS(muon_adamw)
{
    const double *o = s->options;
    n[N_KEEP] = 1 - o[LR] * o[WEIGHT_DECAY];
    n[N_MEAN_FAR] = o[BETA1] <= 0.5;
    n[N_MEAN_WEIGHT] = o[BETA1] <= 0.5 ? -o[BETA1] : 1 - o[BETA1];
    n[N_BETA2] = o[BETA2];
    n[N_REST2] = 1 - o[BETA2];
    n[N_STEP] = -(o[LR] / s->correction[0]);
    n[N_CORRECTION] = 1 / sqrt(s->correction[1]);
    n[N_EPS] = o[EPS];
    return 0;
}

TREK_UPDATE_ELEMENT(muon_adamw, 2, 3, 1, {
    const T tiny = n[N_EPS] > 0 ? TREK_LEAST : 0;
    T mean = (n[N_MEAN_FAR] != 0 ? d : s[BUFFER]) + n[N_MEAN_WEIGHT] * (d - s[BUFFER]);
    T square = s[SQUARE] * n[N_BETA2] + n[N_REST2] * d * d;
    mean *= (T)(trek_magnitude(mean) >= tiny);
    square *= (T)(square >= tiny);
    *x = *x * n[N_KEEP] + n[N_STEP] * mean / (trek_root(square) * n[N_CORRECTION] + n[N_EPS]);
    s[BUFFER] = mean;
    s[SQUARE] = square;
})

/* Returns the factor of a matrix's learning rate. */
__attribute__((unused)) static inline double muon_adjusted(const double *o, double rows, double cols)
{
    switch ((trek_muon_adjust)o[ADJUST]) {
    case TREK_MUON_ADJUST_MATCH_RMS_ADAMW:
        return 0.2 * sqrt(fmax(rows, cols));
    case TREK_MUON_ADJUST_SPECTRAL:
        return sqrt(rows / cols);
    case TREK_MUON_ADJUST_ORIGINAL:
        break;
    }
    return sqrt(fmax(1, rows / cols));
}

#ifdef TREK_OPTIMIZER_HOME
#include <string.h>

#include "optim/whole.h"
#include "tensor/op.h"
#include "tensor/pool.h"
#include "tensor/tensor_internal.h"

/* Returns a matrix in scratch memory in the form that products take. */
static trek_tensor matrix(trek_dtype dtype, void *data, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    return (trek_tensor){ .dtype = (uint8_t)dtype, .ndim = 2, .device = trek_cpu(0), .data = data, .numel = rows * cols,
                          .sizes = { rows, cols }, .strides = { row, col }, .contiguous = col == 1 && row == cols };
}

static trek_tensor transposed(const trek_tensor *x)
{
    return matrix((trek_dtype)x->dtype, x->data, x->sizes[1], x->sizes[0], x->strides[1], x->strides[0]);
}

static double get(const trek_tensor *x, int64_t i, int64_t j)
{
    int64_t at = i * x->strides[0] + j * x->strides[1];
    return x->dtype == TREK_F64 ? ((const double *)x->data)[at] : ((const float *)x->data)[at];
}

static void plain_product(trek_tensor *to, const trek_tensor *a, const trek_tensor *b)
{
    for (int64_t i = 0; i < to->sizes[0]; i++)
        for (int64_t j = 0; j < to->sizes[1]; j++) {
            double sum = 0;
            int64_t at = i * to->strides[0] + j * to->strides[1];
            for (int64_t k = 0; k < a->sizes[1]; k++)
                sum += get(a, i, k) * get(b, k, j);
            if (to->dtype == TREK_F64)
                ((double *)to->data)[at] = sum;
            else
                ((float *)to->data)[at] = (float)sum;
        }
}

/* An update cannot fail: without memory for its blocks, a product merely takes longer. */
static void product(trek_tensor *to, trek_tensor *a, trek_tensor *b)
{
    trek_op_call call = { .op = &trek_ops[TREK_OP_matmul], .n_inputs = 2, .inputs = (trek_tensor *[]){ a, b }, .n_outputs = 1,
                          .outputs = { to } };
    if (trek_cpu_backend()->kernels[TREK_OP_matmul][to->dtype](&call) == TREK_OK)
        return;
    trek_error_clear();
    plain_product(to, a, b);
}

/* Computes to = p x + q to. */
static void combine(trek_tensor *to, const trek_tensor *x, double p, double q)
{
    trek_whole_step((trek_dtype)to->dtype, to->data, x->data, to->numel, q, p);
}

/* Runs the quintic iteration towards the nearest orthogonal matrix. The result is in x or in `other`, and is returned. */
static trek_tensor *newton_schulz(const double *o, trek_tensor *x, trek_tensor *other, trek_tensor *gram, trek_tensor *square)
{
    double norm = trek_whole_norm((trek_dtype)x->dtype, x->data, x->numel);
    trek_cpu_backend()->scale(trek_cpu(0), (trek_dtype)x->dtype, x->data, x->numel, 1 / (norm < o[EPS] ? o[EPS] : norm));
    for (int k = 0; k < (int)o[STEPS]; k++) {
        trek_tensor across = transposed(x), *done = other;
        product(gram, x, &across);
        product(square, gram, gram);
        combine(square, gram, o[B], o[C]);
        product(other, square, x);
        combine(other, x, o[A], 1);
        other = x;
        x = done;
    }
    return x;
}

static void whole(trek_dtype dtype, const trek_update_whole *w)
{
    trek_update_slice s = trek_whole_slice(w);
    const double *o = s.options;
    if (o[ADAM] != 0) {
        trek_whole_elements(muon_adamw_update, dtype, &s);
        return;
    }
    if (s.count == 0)
        return;
    int64_t rows = w->shape.sizes[0], cols = w->shape.sizes[1], few = rows < cols ? rows : cols;
    size_t size = trek_dtype_size(dtype), all = (size_t)s.count * size, some = (size_t)(few * few) * size;
    char *workspace = w->workspace;
    s.state[WAY] = workspace;
    s.kept |= 1u << WAY;
    trek_whole_elements(muon_update, dtype, &s);
    trek_tensor x = matrix(dtype, workspace, rows, cols, cols, 1), other = matrix(dtype, workspace + all, rows, cols, cols, 1);
    trek_tensor gram = matrix(dtype, workspace + 2 * all, few, few, few, 1);
    trek_tensor square = matrix(dtype, workspace + 2 * all + some, few, few, few, 1);
    if (rows > cols) {
        x = transposed(&x);
        other = transposed(&other);
    }
    const trek_tensor *way = newton_schulz(o, &x, &other, &gram, &square);
    trek_whole_step(dtype, s.param, way->data, s.count, 1 - o[LR] * o[WEIGHT_DECAY],
                    -o[LR] * muon_adjusted(o, (double)rows, (double)cols));
}

static size_t workspace(trek_dtype dtype, trek_shape shape, const double *options)
{
    if (options[ADAM] != 0 || shape.ndim != 2)
        return 0;
    int64_t few = shape.sizes[0] < shape.sizes[1] ? shape.sizes[0] : shape.sizes[1];
    return (size_t)(2 * trek_shape_numel(shape) + 2 * few * few) * trek_dtype_size(dtype);
}

/* Returns the cost of the products, which is the smaller side's square times the matrix. */
static double work(trek_shape shape, const double *options)
{
    if (options[ADAM] != 0 || shape.ndim != 2)
        return 0;
    double rows = (double)shape.sizes[0], cols = (double)shape.sizes[1];
    return rows * cols * fmin(rows, cols);
}

static trek_status check_shape(const char *name, trek_shape shape, const double *options)
{
    if (options[ADAM] != 0 || shape.ndim == 2)
        return TREK_OK;
    return trek_fail(TREK_ERR_SHAPE,
                     "muon: parameter '%s': %d dimensions; only matrices are made orthogonal, give it to a group with adam "
                     "(trek_optimizer_vectors)",
                     name, shape.ndim);
}

static trek_status check(const double *o)
{
    if (o[STEPS] != floor(o[STEPS]) || o[STEPS] >= 100)
        return trek_fail(TREK_ERR_ARGUMENT, "muon: ns_steps: %g; must be an integer below 100", o[STEPS]);
    if (o[ADJUST] != floor(o[ADJUST]) || o[ADJUST] > TREK_MUON_ADJUST_SPECTRAL)
        return trek_fail(TREK_ERR_ARGUMENT, "muon: adjust_lr: %g; must be a value of trek_muon_adjust", o[ADJUST]);
    return TREK_OK;
}

static const trek_optimizer_class muon_class = {
    .name = "muon",
    .options = { [LR] = { "lr", .otherwise = 1e-3 }, [WEIGHT_DECAY] = { "weight_decay", .otherwise = 0.1 },
                 [MOMENTUM] = { "momentum", .otherwise = 0.95 }, [PLAIN] = { .name = "no_nesterov" },
                 [A] = { "ns_a", 3.4445, TREK_OPTION_RANGE_FINITE, false },
                 [B] = { "ns_b", -4.775, TREK_OPTION_RANGE_FINITE, false },
                 [C] = { "ns_c", 2.0315, TREK_OPTION_RANGE_FINITE, false }, [EPS] = { "eps", .otherwise = 1e-7 },
                 [STEPS] = { "ns_steps", .otherwise = 5 }, [ADJUST] = { .name = "adjust_lr" }, [ADAM] = { .name = "adam" },
                 [BETA1] = { "beta1", 0.9, TREK_OPTION_RANGE_FRACTION, .corrected = true },
                 [BETA2] = { "beta2", 0.999, TREK_OPTION_RANGE_FRACTION, .corrected = true } },
    .states = { [BUFFER] = { .name = "momentum_buffer" }, [SQUARE] = { "exp_avg_sq", .kept_with = ADAM } },
    .by_step = true,
    .check = check,
    .whole = whole,
    .workspace = workspace,
    .work = work,
    .check_shape = check_shape,
    .gpu = "muon_whole",
};

trek_optimizer_spec trek_muon(const trek_muon_opts *opts)
{
    trek_muon_opts o = opts ? *opts : (trek_muon_opts){ 0 };
    double eps = o.eps == 0 && o.adam ? 1e-8 : o.eps;
    return (trek_optimizer_spec){ .klass = &muon_class, { [LR] = o.lr, [WEIGHT_DECAY] = o.weight_decay, [MOMENTUM] = o.momentum,
                                                 [PLAIN] = o.no_nesterov, [A] = o.ns_coefficients[0],
                                                 [B] = o.ns_coefficients[1], [C] = o.ns_coefficients[2], [EPS] = eps,
                                                 [STEPS] = o.ns_steps, [ADJUST] = o.adjust_lr, [ADAM] = o.adam,
                                                 [BETA1] = o.beta1, [BETA2] = o.beta2 } };
}
#endif
