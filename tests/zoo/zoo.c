/* SPDX-License-Identifier: Apache-2.0 */
/* What the models are made of, and their inputs. */
#include "tests/zoo/zoo.h"

#include <stdlib.h>

#include "tests/support/support.h"

trek_dtype zoo_dtype = TREK_F32;
trek_device zoo_device;

/* --- inputs ----------------------------------------------------------------------------------- */

trek_var *zoo_numbers(uint32_t stream, trek_shape shape)
{
    trek_tensor *narrow = test_tensor(stream, shape, 1), *cast = trek_tensor_cast(narrow, zoo_dtype);
    trek_tensor_release(narrow);
    return trek_var_from(cast);
}

trek_var *zoo_image(int step, trek_shape shape) { return zoo_numbers((uint32_t)(1000 + step), shape); }

trek_var *zoo_of_integers(const int64_t *values, trek_shape shape)
{
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_I64, zoo_device));
}

trek_var *zoo_tokens(int step, int64_t rows, int64_t length, int64_t most)
{
    int64_t values[256];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < length; i++)
            values[r * length + i] = (i * i * 3 + i * 7 + step * 13 + r * 5 + 1) % most;
    return zoo_of_integers(values, trek_dims(rows, length));
}

trek_var *zoo_classes(int step, int64_t rows, int64_t most)
{
    int64_t *values = malloc((size_t)rows * sizeof *values);
    for (int64_t i = 0; values && i < rows; i++)
        values[i] = (i * 7 + step * 3 + 1) % most;
    trek_var *classes = values ? zoo_of_integers(values, trek_dims(rows)) : NULL;
    free(values);
    return classes;
}

trek_var *zoo_cross_entropy(trek_var *logits, trek_var *labels)
{
    return trek_cross_entropy(trek_reshape(logits, trek_dims(-1, trek_var_size(logits, -1))),
                              trek_reshape(labels, trek_dims(-1)));
}

/* --- modules ------------------------------------------------------------------------------------ */

zoo_part *zoo_new(const trek_module_class *klass) { return (zoo_part *)trek_module_new(klass); }

void zoo_add(zoo_part *part, int k, const char *name, trek_module *module)
{
    trek_module_add(&part->base, name, offsetof(zoo_part, m) + (size_t)k * sizeof(trek_module *), module);
}

void zoo_param(zoo_part *part, int k, const char *name, trek_shape shape)
{
    trek_module_param(&part->base, name, offsetof(zoo_part, p) + (size_t)k * sizeof(trek_var *),
                      trek_tensor_zeros(shape, zoo_dtype, zoo_device));
}

trek_module *zoo_done(zoo_part *part) { return trek_module_check(&part->base); }

trek_module *zoo_linear(int64_t in, int64_t out, bool bias)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .no_bias = !bias, .dtype = zoo_dtype,
                                                    .device = zoo_device });
}

trek_module *zoo_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t groups, bool bias)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel }, .stride = { stride },
                                                    .padding = { padding, padding }, .groups = groups, .no_bias = !bias,
                                                    .dtype = zoo_dtype, .device = zoo_device });
}

trek_module *zoo_conv_transpose(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, bool bias)
{
    return trek_nn_conv_transpose2d_with(&(trek_conv_transpose2d_opts){ .in = in, .out = out, .kernel = { kernel },
                                                                        .stride = { stride }, .padding = { padding, padding },
                                                                        .no_bias = !bias, .dtype = zoo_dtype,
                                                                        .device = zoo_device });
}

trek_module *zoo_batch_norm(int64_t channels)
{
    return trek_nn_batch_norm2d_with(&(trek_batch_norm_opts){ .features = channels, .dtype = zoo_dtype, .device = zoo_device });
}

trek_module *zoo_layer_norm(int64_t size, double eps)
{
    return trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(size), .eps = eps, .dtype = zoo_dtype,
                                                            .device = zoo_device });
}

trek_module *zoo_rms_norm(int64_t size, double eps)
{
    return trek_nn_rms_norm_with(&(trek_rms_norm_opts){ .shape = trek_dims(size), .eps = eps, .dtype = zoo_dtype,
                                                        .device = zoo_device });
}

trek_module *zoo_embedding(int64_t num, int64_t dim)
{
    return trek_nn_embedding_with(&(trek_embedding_opts){ .num = num, .dim = dim, .dtype = zoo_dtype, .device = zoo_device });
}
