/* SPDX-License-Identifier: Apache-2.0 */
/* Single ops: host cost, products, kernels bound by memory, attention, and the
 * head of a language model. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

enum { INPUTS = 4, CHAIN = 100 };

typedef struct op_state {
    trek_var *(*op)(struct op_state *s);
    trek_var *in[INPUTS], *seed;
} op_state;

static void forward_only(void *state)
{
    op_state *s = state;
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    s->op(s);
    trek_no_grad_end();
    trek_scope_end(scope);
}

static void forward_and_backward(void *state)
{
    op_state *s = state;
    trek_scope scope = trek_scope_begin();
    trek_backward_with(s->op(s), s->seed, NULL);
    trek_scope_end(scope);
    for (int k = 0; k < INPUTS; k++)
        if (s->in[k])
            trek_var_zero_grad(s->in[k]);
}

static void op_close(op_state *s)
{
    for (int k = 0; k < INPUTS; k++)
        trek_var_release(s->in[k]);
    trek_var_release(s->seed);
    memset(s, 0, sizeof *s);
}

/* A cotangent like the op's result. */
static void op_seed(op_state *s)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *y = s->op(s);
    trek_no_grad_end();
    s->seed = y ? gpu_randn(trek_var_shape(y), trek_var_dtype(y), 1, false) : NULL;
    trek_scope_end(scope);
}

/* "NAME forward" and "NAME forward+backward", with their bytes and floating-point operations. */
static void both_ways(const char *name, op_state *s, double bytes, double bytes_both, double flop)
{
    char text[96];
    op_seed(s);
    snprintf(text, sizeof text, "%s forward", name);
    gpu_report(text, gpu_time(forward_only, s), 1, bytes, flop);
    snprintf(text, sizeof text, "%s forward+backward", name);
    gpu_report(text, gpu_time(forward_and_backward, s), 1, bytes_both, 3 * flop);
    op_close(s);
}

/* --- host cost of eager ops -------------------------------------------------------- */

static trek_var *op_chain(op_state *s)
{
    trek_var *y = s->in[0];
    for (int k = 0; k < CHAIN; k++)
        y = trek_mul(y, s->in[1]);
    return y;
}

static void eager(void)
{
    op_state s = { .op = op_chain };
    s.in[0] = gpu_randn(trek_dims(64), TREK_F32, 1, true);
    s.in[1] = gpu_randn(trek_dims(64), TREK_F32, 1, false);
    op_seed(&s);
    gpu_report("100 mul, each, forward", gpu_time(forward_only, &s), CHAIN, 0, 0);
    gpu_report("100 mul, each, forward+backward", gpu_time(forward_and_backward, &s), CHAIN, 0, 0);
    gpu_report("100 mul, each, forward, host", gpu_time_host(forward_only, NULL, &s), CHAIN, 0, 0);
    gpu_report("100 mul, each, forward+backward, host", gpu_time_host(forward_and_backward, NULL, &s), CHAIN, 0, 0);
    op_close(&s);
}

/* --- products ------------------------------------------------------------------------ */

static trek_var *op_matmul(op_state *s) { return trek_matmul(s->in[0], s->in[1]); }

static void matmul_one(const char *name, trek_dtype dtype, bool tf32)
{
    int64_t n = gpu_size(8192, 64);
    op_state s = { .op = op_matmul };
    trek_matmul_precision_set(tf32 ? TREK_MATMUL_PRECISION_HIGH : TREK_MATMUL_PRECISION_HIGHEST);
    s.in[0] = gpu_randn(trek_dims(n, n), dtype, 1, false);
    s.in[1] = gpu_randn(trek_dims(n, n), dtype, 1, false);
    gpu_report(name, gpu_time(forward_only, &s), 1, 0, 2.0 * (double)n * (double)n * (double)n);
    op_close(&s);
    trek_matmul_precision_set(TREK_MATMUL_PRECISION_HIGHEST);
}

static void matmul(void)
{
    matmul_one("8192 bf16", TREK_BF16, false);
    matmul_one("8192 f16", TREK_F16, false);
    matmul_one("8192 tf32", TREK_F32, true);
    matmul_one("8192 f32", TREK_F32, false);
}

static trek_var *op_linear(op_state *s) { return trek_linear(s->in[0], s->in[1], s->in[2]); }
static trek_var *op_linear_gelu(op_state *s)
{
    return trek_linear_activation(s->in[0], s->in[1], s->in[2], TREK_ACTIVATION_GELU);
}

static void gpt2_products(void)
{
    static const struct {
        const char *name;
        int64_t in, out;
        bool bias, gelu;
    } shapes[] = { { "qkv 768-2304 + bias", 768, 2304, true, false }, { "projection 768-768 + bias", 768, 768, true, false },
                   { "up 768-3072 + bias + gelu", 768, 3072, true, true }, { "down 3072-768 + bias", 3072, 768, true, false } };
    int64_t rows = gpu_size(65536, 64);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        int64_t in = gpu_size(shapes[k].in, 16), out = gpu_size(shapes[k].out, 16);
        op_state s = { .op = shapes[k].gelu ? op_linear_gelu : op_linear };
        s.in[0] = gpu_randn(trek_dims(rows, in), TREK_BF16, 1, true);
        s.in[1] = gpu_randn(trek_dims(out, in), TREK_BF16, 0.02, true);
        s.in[2] = gpu_randn(trek_dims(out), TREK_BF16, 0.02, true);
        both_ways(shapes[k].name, &s, 0, 0, 2.0 * (double)rows * (double)in * (double)out);
    }
}

/* --- bound by memory -------------------------------------------------------------------- */

static trek_var *op_clone(op_state *s) { return trek_clone(s->in[0]); }
static trek_var *op_add(op_state *s) { return trek_add(s->in[0], s->in[3]); }
static trek_var *op_layer_norm(op_state *s) { return trek_layer_norm(s->in[0], 1, s->in[1], s->in[2], 1e-5); }
static trek_var *op_rms_norm(op_state *s) { return trek_rms_norm(s->in[0], 1, s->in[1], 1e-6); }
static trek_var *op_softmax(op_state *s) { return trek_softmax(s->in[0], -1); }
static trek_var *op_gelu(op_state *s) { return trek_gelu(s->in[0]); }
static trek_var *op_dropout(op_state *s) { return trek_dropout(s->in[0], 0.1, true); }
static trek_var *op_sum(op_state *s) { return trek_sum(s->in[0], trek_dims(1), false); }

/* forward, both: how often the array goes over the bus at least. */
static trek_var *op_add_layer_norm(op_state *s)
{
    trek_var *sum;
    return trek_add_layer_norm(s->in[0], s->in[3], 1, s->in[1], s->in[2], 1e-5, &sum);
}

static const struct memory_op {
    const char *name;
    trek_var *(*op)(op_state *s);
    double forward, both;
    bool norm;
} memory_ops[] = {
    { "copy", op_clone, 2, 0, false },          { "add", op_add, 3, 0, false },          { "row sum", op_sum, 1, 0, false },
    { "layer norm", op_layer_norm, 2, 5, true }, { "rms norm", op_rms_norm, 2, 5, true }, { "softmax", op_softmax, 2, 5, false },
    { "gelu", op_gelu, 2, 5, false },            { "dropout", op_dropout, 2, 4, false },
    { "residual + layer norm", op_add_layer_norm, 4, 7, true }, /* the sum's own gradient is left out on both sides */
};

static void memory_in(trek_dtype dtype)
{
    int64_t rows = gpu_size(65536, 64), width = gpu_size(768, 64);
    double array = (double)rows * (double)width * (double)trek_dtype_size(dtype);
    for (size_t k = 0; k < sizeof memory_ops / sizeof *memory_ops; k++) {
        const struct memory_op *m = &memory_ops[k];
        char name[64];
        op_state s = { .op = m->op };
        snprintf(name, sizeof name, "%s %s", m->name, trek_dtype_name(dtype));
        s.in[0] = gpu_randn(trek_dims(rows, width), dtype, 1, m->both > 0);
        if (m->norm) {
            s.in[1] = gpu_randn(trek_dims(width), dtype, 1, true);
            s.in[2] = gpu_randn(trek_dims(width), dtype, 1, true);
        }
        if (m->op == op_add || m->op == op_add_layer_norm)
            s.in[3] = gpu_randn(trek_dims(rows, width), dtype, 1, false);
        if (m->both > 0) {
            both_ways(name, &s, m->forward * array, m->both * array, 0);
        } else {
            gpu_report(name, gpu_time(forward_only, &s), 1, m->forward * array, 0);
            op_close(&s);
        }
    }
}

static void memory(void)
{
    memory_in(TREK_F32);
    memory_in(TREK_BF16);
}

/* --- attention ------------------------------------------------------------------------- */

/* From a packed [B, T, 3, H, D], without copies. */
static trek_var *op_attention(op_state *s)
{
    trek_var *part[3];
    for (int k = 0; k < 3; k++)
        part[k] = trek_permute(trek_select(s->in[0], 2, k), trek_dims(0, 2, 1, 3));
    return trek_attention(part[0], part[1], part[2], &(trek_attention_opts){ .causal = true });
}

static void attention(void)
{
    int64_t batch = gpu_size(16, 1), heads = 12, length = gpu_size(1024, 64), dim = 64;
    op_state s = { .op = op_attention };
    s.in[0] = gpu_randn(trek_dims(batch, length, 3, heads, dim), TREK_BF16, 1, true);
    op_seed(&s);
    double flop = 2.0 * (double)(batch * heads * dim) * (double)length * (double)length; /* two products, half of them masked */
    gpu_report("causal bf16 forward", gpu_time(forward_only, &s), 1, 0, flop);
    gpu_report("causal bf16 forward+backward", gpu_time(forward_and_backward, &s), 1, 0, 3.5 * flop);
    op_close(&s);
}

/* --- linear + cross entropy --------------------------------------------------------------- */

typedef struct head_state {
    trek_var *x, *weight, *labels;
    bool kept; /* logits are a tensor, as in PyTorch's eager mode */
} head_state;

static void head_step(void *state)
{
    head_state *s = state;
    trek_scope scope = trek_scope_begin();
    trek_backward(s->kept ? trek_cross_entropy(trek_linear(s->x, s->weight, NULL), s->labels)
                          : trek_linear_cross_entropy(s->x, s->weight, NULL, s->labels, NULL));
    trek_scope_end(scope);
    trek_var_zero_grad(s->x);
    trek_var_zero_grad(s->weight);
}

static void head(void)
{
    int64_t rows = gpu_size(65536, 64), width = gpu_size(768, 64), classes = gpu_size(50304, 128);
    double flop = 6.0 * (double)rows * (double)width * (double)classes;
    head_state s = { gpu_randn(trek_dims(rows, width), TREK_BF16, 1, true),
                     gpu_randn(trek_dims(classes, width), TREK_BF16, 0.02, true),
                     gpu_randint(trek_dims(rows), classes), false };
    gpu_report("forward+backward fused", gpu_time(head_step, &s), 1, 0, flop);
    trek_memory_release_cached(gpu_device);
    s.kept = true;
    gpu_report("forward+backward kept", gpu_time(head_step, &s), 1, 0, flop);
    trek_var_release(s.x);
    trek_var_release(s.weight);
    trek_var_release(s.labels);
}

const gpu_work gpu_works_ops[] = { { "launch", gpu_work_launch }, { "eager", eager },   { "matmul", matmul },
                                   { "gpt2_products", gpt2_products }, { "memory", memory }, { "attention", attention },
                                   { "linear_cross_entropy", head },   { NULL, NULL } };
