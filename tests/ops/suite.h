/* SPDX-License-Identifier: Apache-2.0 */
/* The op suite: for every row of tensor/ops.def its cases, a reference written
 * apart from the backends, and the checks that run over them.
 *
 * rows.def names for each row a family (which makes the cases), the domains of
 * its inputs, a tolerance class and the inputs whose gradient is checked. A row
 * of ops.def that is missing there, or that has no reference_<name>, does not build. */
#ifndef TREK_TESTS_OPS_SUITE_H
#define TREK_TESTS_OPS_SUITE_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "tensor/backend.h"
#include "tensor/op.h"

/* References have one signature, of which some need a part. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define SUITE_INPUTS 8
#define SUITE_OUTPUTS 6 /* TREK_MAX_OUTPUTS and two that batch_norm updates in place */

/* --- arrays of the references ---------------------------------------------- */

/* Row-major values of any dtype, as doubles (test integers stay below 2^53). */
typedef struct op_array {
    trek_dtype dtype;
    int ndim;
    int64_t sizes[TREK_MAX_DIMS];
    int64_t numel;
    double *v;
    double *scale; /* size of the terms that were summed, where rounding is judged by it; NULL: by the value */
} op_array;

void array_make(op_array *a, trek_dtype dtype, int ndim, const int64_t *sizes);
void array_like(op_array *a, const op_array *b, trek_dtype dtype);
void array_scaled(op_array *a);            /* gives it a scale of zeros */
void array_free(op_array *a);
void array_set(op_array *a, int64_t i, double value); /* stores as the dtype would: integers wrap, bool is != 0 */
int64_t array_index(const op_array *a, const int64_t *index);
/* Steps a row-major index; false after the last. */
bool array_next(int64_t *index, int ndim, const int64_t *sizes);
/* Offset of an index of the broadcast shape in an operand. */
int64_t array_broadcast_index(const op_array *a, const int64_t *index, int ndim);
double dtype_round(trek_dtype dtype, double value);
trek_dtype dtype_promote(trek_dtype a, trek_dtype b);
bool dtype_floats(trek_dtype dtype);

/* --- references -------------------------------------------------------------- */

/* Computes outputs from inputs (NULL: absent) and the attributes as the caller
 * gave them; returns the number of outputs. For rows that fill, out[0] comes made. */
typedef int (*op_reference)(const op_array *const *in, int n, const trek_attrs *a, op_array *out);
#define TREK_OP(name, ...) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out);
#include "tensor/ops.def"
#undef TREK_OP

/* --- cases ------------------------------------------------------------------- */

/* What an op_input's dtype may be besides a trek_dtype. */
#define DTYPE_ROW (-1)        /* the one that the row is run for */
#define DTYPE_STATISTICS (-2) /* the same, but f32 for 16-bit rows */

/* Where test values come from. Integers of a domain are its whole numbers. */
typedef enum op_domain {
    D_ANY,        /* [-2, 2]; integers [-9, 9]; u8 [0, 9] */
    D_POSITIVE,   /* [0.3, 3]; integers [1, 6] */
    D_UNIT,       /* [-0.9, 0.9]; integers [-1, 1] */
    D_ABOVE_M1,   /* [-0.8, 2] */
    D_ABOVE_1,    /* [1.6, 3.6] */
    D_NONZERO,    /* 0.3 <= |x| <= 2 */
    D_OFFGRID,    /* whole number + [0.2, 0.8] */
    D_WIDE,       /* [-20, 20] */
    D_EXPONENT,   /* [-1.5, 2.5]; integers [0, 3] */
    D_SPREAD,     /* distinct, far apart in f64: for maxima */
    D_INDEX,      /* integers [0, limit) */
    D_BINARY,     /* 0 or 1 */
    D_OFFSETS,    /* integers from 0 to limit, never falling, some alike */
    D_RSTD,       /* [0.5, 2] */
    D_PROBABILITY /* (0, 1) */
} op_domain;

typedef struct op_input {
    trek_shape shape;
    op_domain domain;
    int dtype;      /* a trek_dtype, DTYPE_ROW or DTYPE_STATISTICS */
    int64_t limit;  /* D_INDEX */
    bool absent;    /* NULL */
    bool plain;     /* always contiguous: written in place */
    bool special;   /* infinities, NaN, -0, denormals, extremes among the values */
} op_input;

typedef struct op_case {
    char label[64];
    int n;
    op_input in[SUITE_INPUTS];
    op_input given;       /* output 0 for rows that fill */
    trek_attrs attrs;
    unsigned dtypes;      /* bits; 0: all of the row */
    bool large;           /* forward only, few layouts, never under mutation */
    bool no_gradient;
    trek_status expect;   /* not OK: a bad call; run as f32 or the row's first dtype */
    bool in_data;         /* the mistake lies in the data: a GPU reports it when it is synchronised */
} op_case;

typedef struct op_row op_row;
typedef void (*op_sink)(const op_row *row, const op_case *c, void *arg);
typedef void (*op_family)(const op_row *row, op_sink sink, void *arg);

typedef enum op_tolerance {
    T_EXACT,   /* correctly rounded; 16-bit dtypes: one unit in the last place */
    T_MATH,    /* a few units in the last place */
    T_SUM,     /* sums of products, judged by the size of the terms */
    T_CONV,    /* the same, by Winograd's transforms in f32: the terms of a whole tile */
    T_RANDOM   /* not compared number by number where no formula is given */
} op_tolerance;

typedef enum op_special { SPECIAL_NONE, SPECIAL_FINITE /* NaN, -0, denormals */, SPECIAL_ALL } op_special;

struct op_row {
    int id;
    op_family family;
    op_domain domain[3];
    op_tolerance tolerance;
    unsigned gradients;   /* bits: inputs whose gradient is checked; 0 where the row has no rule */
    op_special special;
    op_reference reference;
};

bool row_has_rule(const op_row *row);
bool row_has_composite(const op_row *row);

extern const op_row op_rows[TREK_OP_COUNT];

op_case case_begin(const op_row *row, const char *label);
void case_input(op_case *c, const op_row *row, trek_shape shape); /* the next input, of the row's domain */
void case_typed(op_case *c, op_domain domain, int dtype, trek_shape shape, int64_t limit);
void case_absent(op_case *c);

#define FAMILY(name) void family_##name(const op_row *row, op_sink sink, void *arg)
FAMILY(unary);
FAMILY(scalar);
FAMILY(scalar_compare);
FAMILY(scalar2);
FAMILY(flag);
FAMILY(sloped);
FAMILY(sloped_pair);
FAMILY(same_pair);
FAMILY(same_triple);
FAMILY(binary);
FAMILY(divided);
FAMILY(where);
FAMILY(fused);
FAMILY(reduce);
FAMILY(reduce_nonempty);
FAMILY(arg);
FAMILY(variance);
FAMILY(dim);
FAMILY(dim_pair);
FAMILY(reshape);
FAMILY(expand);
FAMILY(permute);
FAMILY(transpose);
FAMILY(squeeze);
FAMILY(unsqueeze);
FAMILY(narrow);
FAMILY(select);
FAMILY(convert);
FAMILY(flip);
FAMILY(cat);
FAMILY(triangle);
FAMILY(index_select);
FAMILY(index_add);
FAMILY(gather);
FAMILY(scatter_add);
FAMILY(one_hot);
FAMILY(sort);
FAMILY(topk);
FAMILY(kthvalue);
FAMILY(running_extreme);
FAMILY(cumprod);
FAMILY(searchsorted);
FAMILY(nonzero);
FAMILY(scatter);
FAMILY(scatter_reduce);
FAMILY(diagonal);
FAMILY(fill);
FAMILY(random);
FAMILY(matmul);
FAMILY(linear);
FAMILY(conv);
FAMILY(conv_transpose);
FAMILY(conv_input_grad);
FAMILY(conv_weight_grad);
FAMILY(unfold);
FAMILY(fold);
FAMILY(max_pool);
FAMILY(avg_pool);
FAMILY(max_pool_backward);
FAMILY(avg_pool_backward);
FAMILY(adaptive);
FAMILY(adaptive_backward);
FAMILY(resample);
FAMILY(resample_backward);
FAMILY(grid_sample);
FAMILY(grid_sample_backward);
FAMILY(layer_norm);
FAMILY(layer_norm_backward);
FAMILY(add_layer_norm);
FAMILY(add_layer_norm_backward);
FAMILY(linear_cross_entropy);
FAMILY(fp8_quantise);
FAMILY(fp8_product);
FAMILY(linear_cross_entropy_backward);
FAMILY(rms_norm);
FAMILY(rms_norm_backward);
FAMILY(attention);
FAMILY(attention_backward);
FAMILY(group_norm);
FAMILY(group_norm_backward);
FAMILY(batch_norm);
FAMILY(batch_norm_backward);
FAMILY(embedding);
FAMILY(embedding_backward);
FAMILY(embedding_bag);
FAMILY(rotary);
FAMILY(dropout);
FAMILY(cross_entropy);
FAMILY(cross_entropy_backward);
FAMILY(pointwise_loss);
FAMILY(pointwise_loss_backward);
FAMILY(lstm);
FAMILY(lstm_backward);
FAMILY(gru);
FAMILY(gru_backward);

/* --- running ------------------------------------------------------------------ */

typedef enum op_layout { LAYOUT_PLAIN, LAYOUT_TRANSPOSED, LAYOUT_STEPPED, LAYOUT_NEGATIVE, LAYOUT_EXPANDED, LAYOUT_LAST,
                         LAYOUT_COUNT } op_layout;

/* What went wrong, first of all; empty: nothing. */
typedef struct op_report {
    char text[1024];
    int64_t checks;
} op_report;
void report_fail(op_report *r, const char *format, ...) TREK_PRINTF(2, 3);
static inline bool report_bad(const op_report *r) { return r->text[0] != 0; }

/* A tensor on the test's device with the input's values in the layout; a new reference (NULL if absent). */
trek_tensor *suite_tensor(const op_input *in, trek_dtype dtype, op_layout layout, uint64_t seed);
/* Reads or writes any tensor by its strides, on any device: whole spans are copied, no kernel is used. */
void array_read(op_array *a, const trek_tensor *t);
void array_write(const op_array *a, trek_tensor *t);
trek_dtype input_dtype(const op_input *in, trek_dtype dtype);
/* Compares; describes the first difference in the report. */
void array_compare(op_report *r, const char *what, const op_array *want, const trek_tensor *got, op_tolerance tolerance);
/* Whether the row takes inputs of that dtype, by its mask and promotion, and the case asks for it. */
bool case_runs(const op_row *row, const op_case *c, trek_dtype dtype);
/* All inputs of a case; release_inputs gives them back. */
bool make_inputs(const op_case *c, trek_dtype dtype, op_layout layout, uint64_t seed, trek_tensor **in);
void release_inputs(const op_case *c, trek_tensor **in);
double hash_unit(uint64_t seed, uint64_t i); /* [0, 1) */
/* What was freed and is given out again holds NaN, on the CPU: reading what was never written shows. */
void suite_poison(void);

/* Whether gradients with respect to input k are compared, and of the case at all (small, and takes f64). */
bool case_differentiable(const op_row *row, const op_case *c, int k);
bool checked_case(const op_row *row, const op_case *c, const op_report *r);
/* A variable over values, in the scope; in the layout where that can hold them. */
trek_var *suite_var(const op_array *a, op_layout layout, bool requires_grad);
/* Values in [-1, 1) of t's shape, which every floating dtype holds exactly. */
void array_random(op_array *a, const trek_tensor *t, uint64_t seed);

/* The checks of one row; each goes through all of its cases. `quick` leaves large cases out. */
void check_forward(const op_row *row, bool quick, op_report *r);
void check_gradient(const op_row *row, op_report *r);
void check_second(const op_row *row, op_report *r);
void check_leaves(const op_row *row, op_report *r);
void check_mixed(const op_row *row, op_report *r);
void check_composite(const op_row *row, op_report *r);
void check_bad(const op_row *row, op_report *r);
void check_random(const op_row *row, op_report *r);

/* Runs one check for every row as a cmocka test each; returns the exit status. */
int suite_main(const char *group, void (*check)(const op_row *row, op_report *r), bool (*applies)(const op_row *row));

#endif
