/* SPDX-License-Identifier: Apache-2.0 */
/* Works on a GPU and how they are timed. A work makes its data, measures one or
 * more things under names that gpu_bench.py uses for PyTorch's side too, and
 * gives everything back. */
#ifndef TREK_TESTS_BENCH_GPU_BENCH_H
#define TREK_TESTS_BENCH_GPU_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "trek.h"

typedef struct gpu_work {
    const char *name;
    void (*run)(void);
} gpu_work;

/* Ended by one without a name. */
extern const gpu_work gpu_works_ops[], gpu_works_training[];
void gpu_work_launch(void); /* launch.c */
/* The name of the work that runs, for works that differ in a size only. */
const char *gpu_work_name(void);

extern trek_device gpu_device;
/* A size divided by --scale (1 on GPUs; more to try the program elsewhere), at least `least`. */
int64_t gpu_size(int64_t size, int64_t least);

typedef void (*gpu_fn)(void *state);

typedef struct gpu_result {
    double us;        /* median over rounds of the time of one call, from the device's rest to its rest */
    double host_us;   /* the same until the calls have returned */
    double peak_mib;  /* most device memory in use during calls, the first ones included */
    double tokens;    /* of one call, for works on text: set by them. 0: none */
    double loss;      /* after GPU_LOSS_STEPS steps from the first parameters, for works that say it; 0: none */
} gpu_result;
enum { GPU_LOSS_STEPS = 8 };

/* Calls fn a few times, then in rounds that are long enough for the clock. */
gpu_result gpu_time(gpu_fn fn, void *state);
/* What the host alone spends in one call, from a device at rest (rest NULL: trek's), so that full queues do not count. */
gpu_result gpu_time_host(gpu_fn fn, void (*rest)(void), void *state);
/* Prints one line of JSON. per: what one call counts for; bytes and flop of one call, 0: unknown. */
void gpu_report(const char *measure, gpu_result result, double per, double bytes, double flop);
/* Says that a measure could not be taken, with trek's error, which is cleared. */
void gpu_report_failure(const char *measure);

/* Models of models.c and gpt2.c; NULL and an error. */
trek_module *gpu_model_new(const char *name);
trek_module *gpu_gpt2_new(int layers, int64_t width, int64_t heads, int64_t context, int64_t vocabulary, trek_dtype dtype);
/* Mean cross entropy of a gpt2's tokens [B, T] against targets [B, T], by linear_cross_entropy. kept: by two ops, so that the
 * logits and their gradient are tensors. */
trek_var *gpu_gpt2_loss(trek_graph *graph, trek_var *tokens, trek_var *targets, bool kept);

/* --- what is trained (train.c) --------------------------------------------------------------- */

/* A leaf of standard normal values (times scale), owned by the caller. */
trek_var *gpu_randn(trek_shape shape, trek_dtype dtype, double scale, bool requires_grad);
/* Integers in [0, limit), i64. */
trek_var *gpu_randint(trek_shape shape, int64_t limit);

typedef struct gpu_train {
    trek_graph *graph;
    trek_var *x, *y;
    bool classes, tokens, kept, read; /* cross entropy; gpt2's loss, and which; the loss is read after each step */
    bool offload;                     /* what backward needs waits in host memory */
    double last, count;               /* the loss that was read; tokens of a step */
} gpu_train;

trek_graph *gpu_graph_of(trek_module *model, trek_optimizer_spec optimizer);
/* A gpt2 in bf16 with f32 master weights and heads of 64, and a batch of tokens drawn by chance. */
gpu_train gpu_gpt2_train(int layers, int64_t heads, int64_t batch, int64_t length, int64_t context, int64_t vocabulary);
/* A ResNet-50 in bf16 by autocast, channels last, and images of side x side. */
gpu_train gpu_resnet_train(int64_t batch, int64_t side);
/* Steps of a gpu_train. The captured one needs gpu_train_capture before the first of them. */
void gpu_eager_step(void *train);
void gpu_captured_step(void *train);
void gpu_train_capture(gpu_train *train);
void gpu_train_close(gpu_train *train);

#endif
