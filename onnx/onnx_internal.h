/* SPDX-License-Identifier: Apache-2.0 */
/* The exporter's parts: what was traced, the model that is made of it, and how a row of the op table becomes nodes. Internal. */
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

/* --- traces (trace.c) ----------------------------------------------------------------------- */

typedef enum trek_onnx_value_kind {
    TREK_ONNX_INPUT,
    TREK_ONNX_MADE,          /* by a call */
    TREK_ONNX_LEAF,          /* was there, or was made by no op: outside of the model's ops */
    TREK_ONNX_LOST           /* of memory that was written in part since */
} trek_onnx_value_kind;

typedef struct trek_onnx_value {
    trek_onnx_value_kind kind;
    trek_dtype dtype;
    int ndim;
    int64_t sizes[TREK_MAX_DIMS];
    int from;                /* INPUT: which; MADE: the call */
    trek_tensor *tensor;     /* LEAF: retained */
} trek_onnx_value;

/* A call of a row; numbers as infer left them. */
typedef struct trek_onnx_call {
    const trek_op *op;
    trek_attrs attrs;
    int n_inputs, first_input; /* in run.inputs; -1: left out */
    int outputs[TREK_MAX_OUTPUTS]; /* values; -1: none */
    trek_compound compound;  /* where it is one: its numbers */
} trek_onnx_call;

typedef struct trek_onnx_run {
    trek_rank_watch watch;
    int depth;               /* of calls within each other: the outermost counts */
    int entered;             /* compounds within each other */
    int entered_calls, entered_values; /* how many there were when the outermost began */
    bool failed;             /* no memory */
    int n_values, cap_values, n_calls, cap_calls, n_inputs, cap_inputs;
    trek_onnx_value *values;
    trek_onnx_call *calls;
    int *inputs;
    struct trek_onnx_place *places; /* where values are in memory */
    int n_places, cap_places, n_heads, cap_heads;
    int *heads;              /* newest place of an address */
    trek_pointer_map map;    /* addresses to heads */
    int n_outputs;
    int *outputs;            /* values of the results, then of the tags */
    int fail_at;             /* a call that fails, with `problem`; -1: none */
    const char *problem;
} trek_onnx_run;

/* Watches the calling thread from here on. */
void trek_onnx_run_begin(trek_onnx_run *run);
void trek_onnx_run_end(trek_onnx_run *run);
/* The value that a tensor is; one more if it is new. -1 and MEMORY. */
int trek_onnx_run_value(trek_onnx_run *run, trek_tensor *tensor);
int trek_onnx_run_input(trek_onnx_run *run, trek_tensor *tensor, int k);
/* Lets go of all tensors but leaves. */
void trek_onnx_run_settle(trek_onnx_run *run);
void trek_onnx_run_clear(trek_onnx_run *run);

/* An open size. */
typedef struct trek_onnx_symbol {
    const char *name;
    int input, dim;          /* where it is read */
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
    int (*symbol_of)[TREK_MAX_DIMS]; /* [inputs] of a dimension; -1: none */
    int n_runs;
    trek_onnx_run runs[TREK_ONNX_RUNS];

    int call;                /* being written */
    char problem[512];       /* of which this is the first problem; "": none */
    int problem_call;        /* -1: of no call */
    bool failed;             /* no memory */
    bool *live, *wanted;     /* [calls] to be written; [values] read by one of them, or results */
    bool *follows;           /* [values] made of inputs */
    const char **names;      /* [values] once written */
    trek_onnx_chunk *chunks; /* all that the model is made of */
    int numbers;             /* of names, so far */
    int n_nodes, cap_nodes, n_tensors, cap_tensors, n_kept, cap_kept;
    struct TrekOnnx__NodeProto **nodes;
    struct TrekOnnx__TensorProto **tensors;
    trek_tensor **kept;      /* whose memory initializers point to */
} trek_onnx;

/* Zeroed memory that lives as long as the model; NULL, and failed. */
void *trek_onnx_alloc(trek_onnx *x, size_t bytes);
char *trek_onnx_text(trek_onnx *x, const char *format, ...) TREK_PRINTF(2, 3);
/* Says why the present call cannot be written, unless something has been said already. */
void trek_onnx_refuse(trek_onnx *x, const char *format, ...) TREK_PRINTF(2, 3);
/* Nothing has been refused, and memory was there. */
bool trek_onnx_fine(const trek_onnx *x);

/* All give names of values, never NULL. */

/* A node of n inputs (NULL: left out) and its first result; attributes go to the node that was made last. */
const char *trek_onnx_node(trek_onnx *x, const char *type, int n, const char *const *inputs);
const char *trek_onnx_1(trek_onnx *x, const char *type, const char *a);
const char *trek_onnx_2(trek_onnx *x, const char *type, const char *a, const char *b);
const char *trek_onnx_3(trek_onnx *x, const char *type, const char *a, const char *b, const char *c);
/* The last node's first result, and a further one. */
const char *trek_onnx_first(trek_onnx *x);
const char *trek_onnx_more(trek_onnx *x);
void trek_onnx_attr_int(trek_onnx *x, const char *name, int64_t value);
void trek_onnx_attr_ints(trek_onnx *x, const char *name, int n, const int64_t *values);
void trek_onnx_attr_float(trek_onnx *x, const char *name, double value);
void trek_onnx_attr_string(trek_onnx *x, const char *name, const char *value);
void trek_onnx_attr_strings(trek_onnx *x, const char *name, const char *value); /* a list of one */
/* The first value's name becomes `name` in all nodes from `first` on. */
void trek_onnx_rename(trek_onnx *x, int first, const char *from, const char *name);

/* Whether node k makes that value; whether a constant is named so. */
bool trek_onnx_makes(const trek_onnx *x, int k, const char *name);
bool trek_onnx_has_constant(const trek_onnx *x, const char *name);

/* Constants: a scalar; as a vector of one element; i64; of any tensor (retained). */
const char *trek_onnx_scalar(trek_onnx *x, trek_dtype dtype, double value);
const char *trek_onnx_ints(trek_onnx *x, int n, const int64_t *values);
const char *trek_onnx_int(trek_onnx *x, int64_t value); /* [1] */
const char *trek_onnx_full(trek_onnx *x, trek_dtype dtype, double value, int ndim, const int64_t *sizes);
const char *trek_onnx_constant(trek_onnx *x, const char *name, trek_tensor *tensor);
int trek_onnx_dtype(trek_dtype dtype); /* the format's number */
const char *trek_onnx_cast(trek_onnx *x, const char *a, trek_dtype from, trek_dtype to);

/* --- what a row sees of its call (call.c) ------------------------------------------------------ */

const trek_onnx_call *trek_onnx_at(const trek_onnx *x, int run); /* the present call in a run */
int trek_onnx_input_value(const trek_onnx *x, int k);  /* -1: left out */
bool trek_onnx_has(const trek_onnx *x, int k);
const char *trek_onnx_in(trek_onnx *x, int k);         /* the input's name */
const trek_onnx_value *trek_onnx_seen(const trek_onnx *x, int run, int value);
const trek_onnx_value *trek_onnx_in_seen(const trek_onnx *x, int k);  /* of the first run */
const trek_onnx_value *trek_onnx_out_seen(const trek_onnx *x, int k);
bool trek_onnx_wanted(const trek_onnx *x, int k);      /* output k is read */
/* Numbers that must be the same whatever the sizes. */
int64_t trek_onnx_i(trek_onnx *x, int k);
double trek_onnx_f(trek_onnx *x, int k);
/* Dimension d of input k in each run, and whether it is the same in all. */
bool trek_onnx_sizes(const trek_onnx *x, int k, int d, int64_t *sizes);
/* Whether [n_runs] sizes are the same. */
bool trek_onnx_same(const trek_onnx *x, const int64_t *sizes);
/* The size, which must not be open. */
int64_t trek_onnx_fixed(trek_onnx *x, int k, int d);

/* --- sizes (sizes.c): [n_runs] numbers as a value i64 [1] ---------------------------------------- */

const char *trek_onnx_dim_of(trek_onnx *x, const char *name, int d);
/* NULL where no sum or product of open sizes gives them. */
const char *trek_onnx_size(trek_onnx *x, const int64_t *sizes);
/* The same, refused. */
const char *trek_onnx_need_size(trek_onnx *x, const int64_t *sizes, const char *what);
/* A shape [ndim]. sizes: of dimension d in run r at [d][r] */
const char *trek_onnx_shape(trek_onnx *x, int ndim, int64_t (*sizes)[TREK_ONNX_RUNS]);
/* x's `input`th input of that name reshaped to what value (an output of the call) is. */
const char *trek_onnx_reshaped(trek_onnx *x, const char *a, int input_value, int output_value);
/* from:to along a dimension of a value; `to` INT64_MAX: all. */
const char *trek_onnx_sliced(trek_onnx *x, const char *a, int64_t from, int64_t to, int dim, int64_t step);

/* --- rows ------------------------------------------------------------------------------------ */

/* Writes the present call's nodes; names of outputs to outs, of which those wanted are needed. */
typedef void (*trek_onnx_row)(trek_onnx *x, const char **outs);
enum { TREK_ONNX_ROWS = TREK_OP_COUNT + TREK_COMPOUNDS };
trek_onnx_row trek_onnx_row_of(int op);
void trek_onnx_rows_compound(trek_onnx_row *rows);
void trek_onnx_rows_elementwise(trek_onnx_row *rows);
void trek_onnx_rows_reduce(trek_onnx_row *rows);
void trek_onnx_rows_shape(trek_onnx_row *rows);
void trek_onnx_rows_nn(trek_onnx_row *rows);
void trek_onnx_rows_products(trek_onnx_row *rows);
void trek_onnx_rows_recurrent(trek_onnx_row *rows);
/* A node of one layer and direction, its attributes but for the layer's own; sequence lengths as it has them, of input k. */
void trek_onnx_recurrence(trek_onnx *x, const char *type, int64_t hidden, bool reverse, int n, const char *const *inputs);
const char *trek_onnx_lengths(trek_onnx *x, int k);
/* The linear that makes a recurrent call's gates and is written as a part of it: its call; -1: none. */
int trek_onnx_gates_linear(const trek_onnx *x, int call);
/* Reductions over `mask` of the dimensions. */
const char *trek_onnx_reduced(trek_onnx *x, const char *type, const char *a, int64_t mask, bool keepdim);
const char *trek_onnx_activated(trek_onnx *x, const char *a, trek_dtype dtype, int activation);
const char *trek_onnx_gelu(trek_onnx *x, const char *a, trek_dtype dtype, bool tanh);

/* --- the file (file.c) -------------------------------------------------------------------------- */

trek_status trek_onnx_write(trek_onnx *x, const char *path);

#endif
