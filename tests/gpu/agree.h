/* SPDX-License-Identifier: Apache-2.0 */
/* What one process of gpu_agree finds out by one way of attention, in memory that it shares with the process that compares. */
#ifndef TREK_TESTS_GPU_AGREE_H
#define TREK_TESTS_GPU_AGREE_H

#include <stdbool.h>
#include <stdint.h>

#include "trek.h"

enum { AGREE_STEPS = 8, AGREE_PATHS = 16, AGREE_CHECKED = 2 };

typedef enum agree_way { AGREE_OWN, AGREE_WGMMA, AGREE_CUDNN, AGREE_WAYS } agree_way;
typedef enum agree_mode { AGREE_EAGER, AGREE_CAPTURED, AGREE_EAGER_KEPT, AGREE_CAPTURED_KEPT, AGREE_MODES } agree_mode;
extern const char *const agree_way_names[AGREE_WAYS], *const agree_mode_names[AGREE_MODES];

typedef struct agree_sizes {
    int64_t batch, heads, length, depth; /* of attention */
    int64_t gpt2_heads, context, vocabulary;
    int layers;
    bool attention, gpt2; /* what is asked for */
} agree_sizes;

/* A row of trek_device_paths with copies of its texts. */
typedef struct agree_path {
    char what[48], path[48];
    int64_t calls, refused;
} agree_path;

typedef struct agree_paths {
    agree_path row[AGREE_PATHS];
    int count;
} agree_paths;

typedef struct agree_training {
    char error[400]; /* "": it ran */
    double loss[AGREE_STEPS];
    uint64_t parameters; /* a hash of all of them after the last step */
    int64_t replays;
    double seconds;
} agree_training;

typedef struct agree_result {
    char error[400];     /* why nothing could be run */
    char skipped[400];   /* why this way is not there to be tried */
    char report[2000];   /* of trek_device_report, for people */
    char attention_error[400];
    bool attention_ran, same[2]; /* y, gradients: whether the second run had the first one's bits */
    double reference[4]; /* own's distances from f32 in y, dq, dk, dv of a few sequences, relative; -1: not measured */
    agree_paths attention, gpt2;
    agree_training training[AGREE_MODES];
    int trainings; /* that have been finished */
} agree_result;

/* Elements of y, which are [batch, length, heads, depth]; the gradient is of packed [batch, length, 3, heads, depth]. */
int64_t agree_elements(const agree_sizes *s);

/* In a process of its own, whose TREK_CUDA_ATTENTION names the way: fills *result in as it goes. y, gradient: 16-bit values. */
void agree_run(agree_way way, const agree_sizes *sizes, trek_device device, agree_result *result, uint16_t *y,
               uint16_t *gradient);

#endif
