/* SPDX-License-Identifier: Apache-2.0 */
/* The op table. A row of ops.def defines an op; this file defines a call of one on its way to a kernel. */
#ifndef TREK_TENSOR_OP_H
#define TREK_TENSOR_OP_H

#include "tensor/op_opts.h"
#include "tensor/tensor_internal.h"

TREK_BEGIN

#define TREK_MAX_OUTPUTS 4
#define TREK_MAX_FIXED_INPUTS 8

/* An op's numbers; op_signatures.h says next to the op's signature what each of them is. */
typedef struct trek_attrs {
    int64_t i[12];
    double f[4];
} trek_attrs;

typedef struct trek_op trek_op;

typedef struct trek_op_call {
    const trek_op *op;
    int n_inputs, n_outputs;
    trek_tensor **inputs;                   /* optional ones may be NULL */
    trek_tensor *outputs[TREK_MAX_OUTPUTS]; /* given before the call: written in place; otherwise made by infer */
    trek_attrs attrs;
} trek_op_call;

/* Checks shapes and attributes, normalises attributes in place, and makes the outputs. */
typedef trek_status (*trek_infer_fn)(trek_op_call *call);

/* A kernel can rely on its call: shapes, dtypes and attributes are checked; inputs that promote have one dtype;
 * outputs made here are contiguous, except those of element-wise ops, which keep an input's order of dimensions;
 * inputs (and outputs given by the caller) may have any strides. A kernel fails only because of the data (an index
 * out of range) or for lack of scratch memory. */
typedef trek_status (*trek_kernel)(const trek_op_call *call);

enum {
    TREK_OP_VIEW = 1,         /* output 0 shares input 0's storage; no kernel */
    TREK_OP_INT_TO_FLOAT = 2, /* integer and bool inputs are cast to f32 first */
    TREK_OP_INTERNAL = 8,     /* no public trek_x: backward kernels */
    TREK_OP_SCALAR = 16, /* attrs.f[0], and clamp's f[1], take part in promotion: bool -> i64, integer -> f32 if one of them is
                          * not an integer */
    TREK_OP_RANDOM = 32,
    TREK_OP_MANY = 128,         /* more than one output */
    TREK_OP_PAIR = 2048,        /* outputs 0 and 1 both have gradients */
    TREK_OP_FILL = 64,          /* no inputs: writes its given output */
    TREK_OP_CAST_LOW = 256,     /* under autocast: computed in its 16-bit dtype, */
    TREK_OP_CAST_FULL = 512,    /* in f32, */
    TREK_OP_CAST_WIDEST = 1024, /* in the widest dtype of its inputs (rows that promote do that anyway) */
    TREK_OP_CASTS = 256 | 512 | 1024,
    TREK_OP_ALIKE = 4096, /* inputs that promote must have one dtype; otherwise the call fails with DTYPE */
};

/* Dtypes of the key input, as bits. */
#define TREK_BIT(d) (1u << TREK_##d)
#define TREK_FLOATS (TREK_BIT(F32) | TREK_BIT(F64) | TREK_BIT(BF16) | TREK_BIT(F16))
#define TREK_INTS (TREK_BIT(I64) | TREK_BIT(I32) | TREK_BIT(U8))
#define TREK_NUMBERS (TREK_FLOATS | TREK_INTS)
#define TREK_ALL (TREK_NUMBERS | TREK_BIT(BOOL))

/* With d = x - target: d^2; |d|; d^2 / (2 beta), and |d| - beta / 2 from beta on; the cross entropy of sigmoid(x);
 * that of probabilities x, whose logarithms are at least -100 and whose slope uses x (1 - x) of at least 1e-12. */
enum trek_pointwise_loss {
    TREK_LOSS_SQUARED,
    TREK_LOSS_ABSOLUTE,
    TREK_LOSS_SMOOTH,
    TREK_LOSS_LOGISTIC,
    TREK_LOSS_BINARY,
    TREK_LOSS_KINDS
};

/* What kthvalue's row selects: the element at index count - 1 in order; the median at (n - 1) / 2, or the first NaN;
 * the median of the elements that are not NaN, if there are any. */
enum trek_order_choice { TREK_ORDER_KTH, TREK_ORDER_MEDIAN, TREK_ORDER_NANMEDIAN, TREK_ORDER_CHOICES };
/* Whether losses have this reduction. */
static inline bool trek_reduces_losses(int64_t reduction)
{
    return reduction == TREK_REDUCTION_MEAN || reduction == TREK_REDUCTION_SUM || reduction == TREK_REDUCTION_NONE;
}

/* What scatter_reduce's row computes from several elements. */
enum trek_scatter_kind { TREK_SCATTER_PROD, TREK_SCATTER_AMAX, TREK_SCATTER_AMIN, TREK_SCATTER_KINDS };

/* Gradients that linear_cross_entropy must also compute in forward, as bits. */
typedef enum trek_head_gradients { TREK_HEAD_X = 1, TREK_HEAD_WEIGHT = 2, TREK_HEAD_BIAS = 4 } trek_head_gradients;

/* The gradients of logits, of one row's loss, are at most 1, and most of them are very small: in f16 they are
 * multiplied by this. */
#define TREK_HEAD_UNIT(dtype) ((dtype) == TREK_F16 ? 256 : 1)

/* What the gradient of an input needs: bits of inputs and outputs. */
#define TREK_I(k) (1u << (k))
#define TREK_O(k) (1u << (8 + (k)))
#define TREK_MAX_SAVES 5 /* inputs that can have a gradient rule of their own; further ones share the last */

struct trek_op {
    const char *name;
    int id;
    trek_infer_fn infer;
    uint16_t dtypes; /* bits: of the key input after promotion */
    uint16_t flags;
    uint8_t promote; /* bits: inputs promoted to one dtype, or with one dtype (TREK_OP_ALIKE) */
    int8_t key;      /* the input whose dtype selects the kernel; -1: output 0's */
    uint8_t needed;  /* bits: inputs that must not be NULL */
    uint16_t saves[TREK_MAX_SAVES];
};

enum trek_op_id {
#define TREK_OP(name, ...) TREK_OP_##name,
#include "tensor/ops.def"
#undef TREK_OP
    TREK_OP_COUNT
};

extern const trek_op trek_ops[TREK_OP_COUNT];

/* Runs promotion, infer, and dispatch to the backend of the inputs' device. On success the caller owns the outputs;
 * on failure none are left (given ones stay). */
trek_status trek_op_run(trek_op_call *call);

/* Runs trek_op_run, returns output 0 and releases the others. */
trek_tensor *trek_op_run_first(trek_op_call *call);

#ifndef __cplusplus
#include "tensor/op_opts.h"
#include "tensor/op_signatures.h"

/* trek_tensor_x runs row x without a gradient, for the library's own use, and returns a new reference, or NULL on failure. These
 * rows have one. The compiler compares the signatures with those of the rows. */
#define TREK_TENSOR_CALLS(CALL)                                                                                                  \
    CALL(add, BINARY)                                                                                                            \
    CALL(convert, DTYPE)                                                                                                         \
    CALL(copy, UNARY)                                                                                                            \
    CALL(eq, BINARY)                                                                                                             \
    CALL(expand, SHAPE)                                                                                                          \
    CALL(fill, FILL)                                                                                                             \
    CALL(index_select, BINARY_DIM)                                                                                               \
    CALL(lt, BINARY)                                                                                                             \
    CALL(matmul, BINARY)                                                                                                         \
    CALL(max, REDUCE)                                                                                                            \
    CALL(mul, BINARY)                                                                                                            \
    CALL(mul_scalar, SCALAR)                                                                                                     \
    CALL(narrow, DIM_RANGE)                                                                                                      \
    CALL(ne_scalar, SCALAR)                                                                                                      \
    CALL(neg, UNARY)                                                                                                             \
    CALL(reshape, SHAPE)                                                                                                         \
    CALL(select, DIM_INDEX)                                                                                                      \
    CALL(sum, REDUCE)                                                                                                            \
    CALL(transpose, DIM2)                                                                                                        \
    CALL(where, TERNARY)

#define TREK_OP(name, signature, ...) typedef trek_tensor *trek_tensor_call_##name(TREK_PARAMS_##signature(trek_tensor));
#include "tensor/ops.def"
#undef TREK_OP
#define TREK_DECLARE_CALL(name, signature) trek_tensor_call_##name trek_tensor_##name;
TREK_TENSOR_CALLS(TREK_DECLARE_CALL)
#undef TREK_DECLARE_CALL
#endif

/* Returns the dtype in which inputs of a promoting op are computed, as in PyTorch: an input without dimensions counts
 * only if its kind (bool, integer, floating) is higher than that of inputs with dimensions. NULLs are ignored;
 * TREK_DTYPE_COUNT if all are NULL. */
trek_dtype trek_op_common_dtype(trek_tensor *const *inputs, int count);

/* For infer functions: makes output k, or checks the given one. */
trek_status trek_op_output(trek_op_call *call, int k, int ndim, const int64_t *sizes, trek_dtype dtype);
/* For infer functions: sets an error with "name: " and the message, which may contain shapes. */
trek_status trek_op_fail(const trek_op_call *call, trek_status status, const char *format, ...) TREK_PRINTF(3, 4);

TREK_END

#endif
