/* SPDX-License-Identifier: Apache-2.0 */
/* Well-known models, small, written with trek's public interface alone; make.py has the same in PyTorch, with the same names. */
#ifndef TREK_TESTS_ZOO_H
#define TREK_TESTS_ZOO_H

#include "trek.h"

typedef struct zoo_model {
    const char *name;
    trek_module *(*build)(void);
    /* The loss of step 0, 1, ..; through *output what it was made of. */
    trek_var *(*loss)(trek_module *model, int step, trek_var **output);
    const char *players[2];   /* whose parameters learn in steps 0, 2, .. and 1, 3, ..; NULL: all in each */
} zoo_model;

extern const zoo_model zoo_resnet18, zoo_mobilenet_v2, zoo_unet, zoo_gpt2, zoo_bert, zoo_t5, zoo_lstm_lm, zoo_vit, zoo_vae,
    zoo_dcgan;

/* What they are made in, and where. */
extern trek_dtype zoo_dtype;
extern trek_device zoo_device;

/* --- inputs, as make.py's ------------------------------------------------------------------- */

trek_var *zoo_numbers(uint32_t stream, trek_shape shape);                  /* in [-1, 1) */
trek_var *zoo_image(int step, trek_shape shape);
trek_var *zoo_tokens(int step, int64_t rows, int64_t length, int64_t most); /* i64 [rows, length] */
trek_var *zoo_classes(int step, int64_t rows, int64_t most);               /* i64 [rows] */
trek_var *zoo_of_integers(const int64_t *values, trek_shape shape);
trek_var *zoo_cross_entropy(trek_var *logits, trek_var *labels);           /* over all but the last dimension */

/* --- modules ----------------------------------------------------------------------------------- */

/* Of parts, which its class's forward knows by number. */
typedef struct zoo_part {
    trek_module base;
    trek_module *m[12];
    trek_var *p[4];
    int64_t n[4];
} zoo_part;

#define ZOO_CLASS(kind, ...) \
    static const trek_module_class kind##_class = { .name = #kind, .size = sizeof(zoo_part), __VA_ARGS__ }

zoo_part *zoo_new(const trek_module_class *klass);
void zoo_add(zoo_part *part, int k, const char *name, trek_module *module);
void zoo_param(zoo_part *part, int k, const char *name, trek_shape shape);
trek_module *zoo_done(zoo_part *part);
#define ZOO_SEQUENTIAL(...)                                                                                                      \
    trek_nn_sequential((trek_module *[]){ __VA_ARGS__ }, (int)(sizeof((trek_module *[]){ __VA_ARGS__ }) / sizeof(trek_module *)))

trek_module *zoo_linear(int64_t in, int64_t out, bool bias);
trek_module *zoo_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t groups, bool bias);
trek_module *zoo_conv_transpose(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, bool bias);
trek_module *zoo_batch_norm(int64_t channels);
trek_module *zoo_layer_norm(int64_t size, double eps); /* eps 0: the default */
trek_module *zoo_rms_norm(int64_t size, double eps);
trek_module *zoo_embedding(int64_t num, int64_t dim);

#endif
