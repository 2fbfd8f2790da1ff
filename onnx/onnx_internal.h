/* SPDX-License-Identifier: Apache-2.0 */
/* The exporter's parts: what was traced, the model made from it, and how a row of the op table becomes nodes. */
#ifndef TREK_ONNX_ONNX_INTERNAL_H
#define TREK_ONNX_ONNX_INTERNAL_H

#include "nn/module.h"
#include "nn/pointer_map.h"
#include "onnx/export.h"
#include "tensor/compound.h"
#include "tensor/memory_internal.h"
#include "tensor/op.h"
#include "tensor/rank_context.h"
#include "tensor/status_internal.h"

#define TREK_ONNX_SYMBOLS 8
#define TREK_ONNX_RUNS (TREK_ONNX_SYMBOLS + 2)

/* --- traces (call_trace.c) ----------------------------------------------------------------------- */

typedef enum trek_onnx_value_kind {
    TREK_ONNX_INPUT,
    TREK_ONNX_MADE, /* by a call */
    TREK_ONNX_LEAF, /* existed before, or was made by no op: outside the model's ops */
    TREK_ONNX_LOST  /* its memory has since been overwritten in part */
} trek_onnx_value_kind;

typedef struct trek_onnx_value {
    trek_onnx_value_kind kind;
    trek_dtype dtype;
    int ndim;
    int64_t sizes[TREK_MAX_DIMS];
    int from;            /* INPUT: its index; MADE: the call */
    trek_tensor *tensor; /* LEAF: retained */
} trek_onnx_value;

/* A call of a row, with the numbers as infer left them. */
typedef struct trek_onnx_call {
    const trek_op *op;
    trek_attrs attrs;
    int n_inputs, first_input;     /* in run.inputs; -1 if left out */
    int outputs[TREK_MAX_OUTPUTS]; /* values; -1 for none */
    trek_compound compound;        /* if it is a compound: its numbers */
} trek_onnx_call;

typedef struct trek_onnx_run {
    trek_rank_watch watch;
    int depth;                         /* of nested calls: the outermost counts */
    int entered;                       /* depth of nested compounds */
    int entered_calls, entered_values; /* how many there were when the outermost began */
    bool failed;                       /* out of memory */
    int n_values, cap_values, n_calls, cap_calls, n_inputs, cap_inputs;
    trek_onnx_value *values;
    trek_onnx_call *calls;
    int *inputs;
    struct trek_onnx_place *places; /* where values are in memory */
    int n_places, cap_places, n_heads, cap_heads;
    int *heads;           /* newest place of an address */
    trek_pointer_map map; /* addresses to heads */
    int n_outputs;
    int *outputs; /* values of the results, then of the tags */
    int fail_at;  /* a call to fail at, with `problem`; -1 for none */
    const char *problem;
} trek_onnx_run;

/* Begin and end watching the calling thread. */
void trek_onnx_run_begin(trek_onnx_run *run);
void trek_onnx_run_end(trek_onnx_run *run);
/* Returns the value of a tensor, and adds one if it is new. Returns -1 with MEMORY. */
int trek_onnx_run_value(trek_onnx_run *run, trek_tensor *tensor);
int trek_onnx_run_input(trek_onnx_run *run, trek_tensor *tensor, int k);
/* Releases all tensors except leaves. */
void trek_onnx_run_settle(trek_onnx_run *run);
void trek_onnx_run_clear(trek_onnx_run *run);

/* An open size. */
typedef struct trek_onnx_symbol {
    const char *name;
    int input, dim; /* where it is read */
    int64_t sizes[TREK_ONNX_RUNS];
} trek_onnx_symbol;

/* --- the model (model.c) -------------------------------------------------------------------- */

struct TrekOnnx__NodeProto;
struct TrekOnnx__TensorProto;

typedef struct trek_onnx_chunk {
    struct trek_onnx_chunk *next;
    size_t used, size;
} trek_onnx_chunk;

typedef struct trek_onnx {
    trek_module *module;
    const trek_onnx_opts *opts;
    int opset;
    int n_inputs, n_results, n_tags;
    const char **input_names, **output_names;
    int n_symbols;
    trek_onnx_symbol symbols[TREK_ONNX_SYMBOLS];
    int (*symbol_of)[TREK_MAX_DIMS]; /* [inputs] of each dimension; -1 for none */
    int n_runs;
    trek_onnx_run runs[TREK_ONNX_RUNS];

    int call;                /* being written */
    const char *type;        /* of its row */
    char problem[512];       /* the first problem of that call; "" for none */
    int problem_call;        /* -1 if it belongs to no call */
    bool failed;             /* out of memory */
    bool *live, *wanted;     /* [calls] to be written; [values] read by one of them, or results */
    bool *follows;           /* [values] computed from inputs */
    const char **names;      /* [values] set once written */
    trek_onnx_chunk *chunks; /* all memory of the model */
    int numbers;             /* numbers used in names so far */
    int n_nodes, cap_nodes, n_tensors, cap_tensors, n_kept, cap_kept;
    struct TrekOnnx__NodeProto **nodes;
    struct TrekOnnx__TensorProto **tensors;
    trek_tensor **kept; /* tensors whose memory initializers point to */
} trek_onnx;

/* Returns zeroed memory that lives as long as the model. On failure it sets `failed` and returns NULL. */
void *trek_onnx_alloc(trek_onnx *x, size_t bytes);
char *trek_onnx_text(trek_onnx *x, const char *format, ...) TREK_PRINTF(2, 3);
/* Says why the current call cannot be written, unless a reason was given already. */
void trek_onnx_refuse(trek_onnx *x, const char *format, ...) TREK_PRINTF(2, 3);
/* Returns whether nothing has been refused and memory has sufficed. */
bool trek_onnx_fine(const trek_onnx *x);

/* All of these return names of values, never NULL. */

/* Adds a node with n inputs (NULL if left out) and returns its first result. Attributes go to the node made last. */
const char *trek_onnx_node(trek_onnx *x, const char *type, int n, const char *const *inputs);
const char *trek_onnx_1(trek_onnx *x, const char *type, const char *a);
const char *trek_onnx_2(trek_onnx *x, const char *type, const char *a, const char *b);
const char *trek_onnx_3(trek_onnx *x, const char *type, const char *a, const char *b, const char *c);
/* Return the last node's first result, and a further one. */
const char *trek_onnx_first(trek_onnx *x);
const char *trek_onnx_more(trek_onnx *x);
void trek_onnx_attr_int(trek_onnx *x, const char *name, int64_t value);
void trek_onnx_attr_ints(trek_onnx *x, const char *name, int n, const int64_t *values);
void trek_onnx_attr_float(trek_onnx *x, const char *name, double value);
void trek_onnx_attr_string(trek_onnx *x, const char *name, const char *value);
void trek_onnx_attr_strings(trek_onnx *x, const char *name, const char *value); /* a list of one */
/* Changes the first value's name to `name` in all nodes from `first` on. */
void trek_onnx_rename(trek_onnx *x, int first, const char *from, const char *name);

/* Return whether node k makes that value, and whether a constant has that name. */
bool trek_onnx_makes(const trek_onnx *x, int k, const char *name);
bool trek_onnx_has_constant(const trek_onnx *x, const char *name);

/* Constants: a scalar, a vector of one element, i64 numbers, and any tensor (retained). */
const char *trek_onnx_scalar(trek_onnx *x, trek_dtype dtype, double value);
const char *trek_onnx_ints(trek_onnx *x, int n, const int64_t *values);
const char *trek_onnx_int(trek_onnx *x, int64_t value); /* [1] */
const char *trek_onnx_full(trek_onnx *x, trek_dtype dtype, double value, int ndim, const int64_t *sizes);
const char *trek_onnx_constant(trek_onnx *x, const char *name, trek_tensor *tensor);
int trek_onnx_dtype(trek_dtype dtype); /* the format's number */
const char *trek_onnx_cast(trek_onnx *x, const char *a, trek_dtype from, trek_dtype to);

/* --- what a row sees of its call (row_call.c) ------------------------------------------------------ */

const trek_onnx_call *trek_onnx_at(const trek_onnx *x, int run); /* the current call in a run */
int trek_onnx_input_value(const trek_onnx *x, int k);            /* -1 if left out */
bool trek_onnx_has(const trek_onnx *x, int k);
const char *trek_onnx_in(trek_onnx *x, int k); /* the input's name */
const trek_onnx_value *trek_onnx_seen(const trek_onnx *x, int run, int value);
const trek_onnx_value *trek_onnx_in_seen(const trek_onnx *x, int k); /* of the first run */
const trek_onnx_value *trek_onnx_out_seen(const trek_onnx *x, int k);
bool trek_onnx_wanted(const trek_onnx *x, int k); /* whether output k is read */
/* Return numbers that must be the same for all sizes. */
int64_t trek_onnx_i(trek_onnx *x, int k);
double trek_onnx_f(trek_onnx *x, int k);
/* Reads dimension d of input k in each run, and returns whether it is the same in all. */
bool trek_onnx_sizes(const trek_onnx *x, int k, int d, int64_t *sizes);
/* Returns whether the [n_runs] sizes are the same. */
bool trek_onnx_same(const trek_onnx *x, const int64_t *sizes);
/* Returns the size, which must not be open. */
int64_t trek_onnx_fixed(trek_onnx *x, int k, int d);

/* --- sizes (sizes.c): [n_runs] numbers as a value i64 [1] ---------------------------------------- */

const char *trek_onnx_dim_of(trek_onnx *x, const char *name, int d);
/* Returns NULL if no sum or product of open sizes gives them. */
const char *trek_onnx_size(trek_onnx *x, const int64_t *sizes);
/* The same, but refuses the call in that case. */
const char *trek_onnx_need_size(trek_onnx *x, const int64_t *sizes, const char *what);
/* Returns a shape [ndim]. sizes[d][r] is dimension d in run r. */
const char *trek_onnx_shape(trek_onnx *x, int ndim, int64_t (*sizes)[TREK_ONNX_RUNS]);
/* Reshapes the value a, whose shape is that of input_value, to the shape of output_value. */
const char *trek_onnx_reshaped(trek_onnx *x, const char *a, int input_value, int output_value);
/* Returns from:to along a dimension of a value; `to` INT64_MAX means all. */
const char *trek_onnx_sliced(trek_onnx *x, const char *a, int64_t from, int64_t to, int dim, int64_t step);

/* --- rows ------------------------------------------------------------------------------------ */

/* Writes the current call's nodes and returns the names of its outputs in `outs`; those that are wanted are required. */
typedef void (*trek_onnx_writer)(trek_onnx *x, const char **outs);
/* How calls of an op are written. Where a writer serves several ops, the row has what distinguishes this op from the others,
 * mostly the type of an ONNX node. The writer does not ask which op it is, so no op can be taken for another one. */
typedef struct trek_onnx_row {
    int op;                 /* or TREK_OP_COUNT + the kind of a compound */
    trek_onnx_writer write; /* NULL after the last row of a table */
    const char *type;
} trek_onnx_row;
enum { TREK_ONNX_ROWS = TREK_OP_COUNT + TREK_COMPOUNDS };
/* Returns the row of an op, or NULL if it has none. */
const trek_onnx_row *trek_onnx_row_of(int op);
extern const trek_onnx_row trek_onnx_rows_compound[], trek_onnx_rows_elementwise[], trek_onnx_rows_nn[],
    trek_onnx_rows_products[], trek_onnx_rows_recurrent[], trek_onnx_rows_reduce[], trek_onnx_rows_shape[];
/* Returns whether the type of the current call's row is this one. */
bool trek_onnx_is(const trek_onnx *x, const char *type);
/* Makes a node for one layer and direction, with its attributes except for the layer's own. The sequence lengths come
 * from input k. */
void trek_onnx_recurrence(trek_onnx *x, const char *type, int64_t hidden, bool reverse, int n, const char *const *inputs);
const char *trek_onnx_lengths(trek_onnx *x, int k);
/* Returns the call of the linear that computes a recurrent call's gates and is written as a part of it, or -1. */
int trek_onnx_gates_linear(const trek_onnx *x, int call);
/* Reduces over the dimensions in `mask`. */
const char *trek_onnx_reduced(trek_onnx *x, const char *type, const char *a, int64_t mask, bool keepdim);
const char *trek_onnx_activated(trek_onnx *x, const char *a, trek_dtype dtype, int activation);
const char *trek_onnx_gelu(trek_onnx *x, const char *a, trek_dtype dtype, bool tanh);

/* --- the file (file.c) -------------------------------------------------------------------------- */

trek_status trek_onnx_write(trek_onnx *x, const char *path);

#endif
