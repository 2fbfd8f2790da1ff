/* SPDX-License-Identifier: Apache-2.0 */
/* Images next to each other in one PNG. */
#ifndef TREK_EXAMPLES_GRID_H
#define TREK_EXAMPLES_GRID_H

#include "trek.h"

/* images [n, channels, h, w] in [low, high], `columns` in a row; n is a multiple of them. Errors: SHAPE, and those of
 * trek_image_write_png. */
static inline trek_status grid_write(const char *path, trek_var *images, int64_t columns, double low, double high)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *x = trek_unflatten(images, 0, trek_dims(-1, columns));           /* [rows, columns, channels, h, w] */
    x = trek_permute(x, trek_dims(2, 0, 3, 1, 4));                             /* [channels, rows, h, columns, w] */
    x = trek_flatten(trek_flatten(x, 3, 4), 1, 2);                             /* [channels, rows h, columns w] */
    x = trek_mul_scalar(trek_add_scalar(trek_clamp(x, low, high), -low), 255 / (high - low));
    x = trek_cast(trek_round(x), TREK_U8);
    trek_status status = x ? trek_image_write_png(path, trek_var_data(x)) : trek_error_status();
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

#endif
