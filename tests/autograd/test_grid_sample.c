/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling at places of a grid and grids of affine maps, against numbers told by hand; the op suite has their loops. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

#define SAMPLE(x, grid, ...) trek_grid_sample(x, grid, &(trek_grid_sample_opts){ __VA_ARGS__ })

/* A row of four at places along it. */
static void modes_and_paddings(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 1, 4), TREK_F32, 1, 2, 4, 8);
    trek_var *grid = VALUES(trek_dims(1, 1, 5, 2), TREK_F32, -1, 0, -0.5, 0, 0, 0, 1, 0, 1.5, 0); /* -0.5, 0.5, 1.5, 3.5, 4.5 */
    ASSERT_VALUES(trek_grid_sample(x, grid, NULL), 0.5, 1.5, 3, 4, 0);
    ASSERT_VALUES(SAMPLE(x, grid, .padding = TREK_GRID_PADDING_BORDER), 1, 1.5, 3, 8, 8);
    ASSERT_VALUES(SAMPLE(x, grid, .padding = TREK_GRID_PADDING_REFLECTION), 1, 1.5, 3, 8, 6);
        /* 4.5 is 2.5 in the mirror at 3.5 */
    ASSERT_VALUES(SAMPLE(x, grid, .align_corners = true), 1, 1.75, 3, 8, 2); /* 0, 0.75, 1.5, 3, 3.75 */
    ASSERT_VALUES(SAMPLE(x, grid, .mode = TREK_GRID_MODE_NEAREST, .align_corners = true), 1, 2, 4, 8, 0);
    ASSERT_VALUES(SAMPLE(x, grid, .mode = TREK_GRID_MODE_NEAREST), 1, 1, 4, 0, 0); /* halves to even */
    trek_var *middle = VALUES(trek_dims(1, 1, 1, 2), TREK_F32, 0, 0);
    ASSERT_VALUES(SAMPLE(x, middle, .mode = TREK_GRID_MODE_BICUBIC), -0.09375 * (1 + 8) + 0.59375 * (2 + 4));
    ASSERT_VALUES(trek_grid_sample(trek_cast(x, TREK_BF16), trek_cast(grid, TREK_BF16), NULL), 0.5, 1.5, 3, 4, 0);
}

static void three_dimensions(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 2, 2, 2), TREK_F64, 0, 1, 2, 3, 4, 5, 6, 7);
    trek_var *grid = VALUES(trek_dims(1, 1, 1, 2, 3), TREK_F64, 0.5, -1, 1, 0, 0, 0); /* x, y, z */
    ASSERT_VALUES(SAMPLE(x, grid, .align_corners = true), 4.75, 3.5);
    ASSERT_VALUES(SAMPLE(x, grid, .mode = TREK_GRID_MODE_NEAREST, .align_corners = true), 5, 0);
}

/* Places that are not finite, strides, nothing. */
static void edges(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 1, 2), TREK_F32, 5, 7);
    trek_var *grid = VALUES(trek_dims(1, 1, 3, 2), TREK_F32, NAN, 0, INFINITY, 0, -INFINITY, NAN);
    ASSERT_VALUES(trek_grid_sample(x, grid, NULL), 0, 0, 0);
    ASSERT_VALUES(SAMPLE(x, grid, .padding = TREK_GRID_PADDING_BORDER), 5, 7, 5);
    assert_non_null(SAMPLE(x, grid, .padding = TREK_GRID_PADDING_REFLECTION, .mode = TREK_GRID_MODE_BICUBIC));
    trek_var *holes = VALUES(trek_dims(1, 1, 1, 2), TREK_F32, NAN, INFINITY),
        *off = VALUES(trek_dims(1, 1, 1, 2), TREK_F32, 9, 0);
    ASSERT_VALUES(trek_grid_sample(holes, off, NULL), 0); /* what is outside is not looked at */
    trek_var *wide = VALUES(trek_dims(1, 2, 2, 1), TREK_F32, 1, 2, 3, 4),
        *places = VALUES(trek_dims(1, 2, 1, 2), TREK_F32, 0, -1, 0, 1);
    ASSERT_VALUES(SAMPLE(trek_transpose(wide, 1, 2), trek_transpose(places, 1, 2), .align_corners = true), 1, 3, 2, 4);
    trek_var *none = values_of(trek_dims(0, 3, 2, 2), TREK_F32, (double[]){ 0 });
    trek_var *nowhere = values_of(trek_dims(0, 4, 5, 2), TREK_F32, (double[]){ 0 });
    assert_int_equal(trek_var_size(trek_grid_sample(none, nowhere, NULL), 3), 5);
}

/* Of the input alone, of the grid alone, of a border that holds a place. */
static void gradients_of_one(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 1, 2), TREK_F64, 5, 7), *grid = VALUES(trek_dims(1, 1, 2, 2), TREK_F64, 0.25, 0, 3, 0);
    trek_var *leaf = trek_var_new(trek_var_data(x), true), *places = trek_var_new(trek_var_data(grid), true);
    trek_grid_sample_opts border = { .padding = TREK_GRID_PADDING_BORDER, .align_corners = true };
    assert_int_equal(trek_backward(trek_sum(trek_grid_sample(leaf, grid, &border), trek_dims_all(), false)), TREK_OK);
    ASSERT_VALUES(trek_var_grad(leaf), 0.375, 1.625);
    assert_int_equal(trek_backward(trek_sum(trek_grid_sample(x, places, &border), trek_dims_all(), false)), TREK_OK);
    ASSERT_VALUES(trek_var_grad(places), 1, 0, 0, 0);
    trek_var_release(leaf);
    trek_var_release(places);
}

static void grid_refused(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 1, 2), TREK_F32, 5, 7), *grid = VALUES(trek_dims(1, 1, 1, 2), TREK_F32, 0, 0);
    REFUSED(trek_grid_sample(x, trek_cast(grid, TREK_F64), NULL), TREK_ERR_DTYPE, "grid_sample");
    REFUSED(SAMPLE(x, grid, .mode = (trek_grid_mode)3), TREK_ERR_ARGUMENT, "grid_sample: mode or padding: 3");
    REFUSED(SAMPLE(trek_unsqueeze(x, 2), VALUES(trek_dims(1, 1, 1, 1, 3), TREK_F32, 0, 0, 0), .mode = TREK_GRID_MODE_BICUBIC),
            TREK_ERR_ARGUMENT, "bicubic mode needs 4 dimensions");
    REFUSED(trek_grid_sample(x, trek_select(grid, 0, 0), NULL), TREK_ERR_SHAPE,
            "grid_sample: grid: [1, 1, 2] does not fit input [1, 1, 1, 2]");
    REFUSED(trek_grid_sample(trek_narrow(x, 3, 0, 0), grid, NULL), TREK_ERR_SHAPE, "must have elements to sample");
    assert_null(trek_grid_sample(x, NULL, NULL));
    trek_error_clear();
}

static trek_var *flat_map(trek_var *const *in) { return trek_affine_grid(in[0], trek_dims(2, 1, 3, 2), true); }
static trek_var *deep_map(trek_var *const *in) { return trek_affine_grid(in[0], trek_dims(1, 1, 2, 3, 2), false); }

static void affine(void **state)
{
    trek_var *theta = VALUES(trek_dims(1, 2, 3), TREK_F32, 1, 0, 0, 0, 2, 0.5);
    trek_var *grid = trek_affine_grid(theta, trek_dims(1, 7, 2, 3), true);
    ASSERT_VALUES(grid, -1, -1.5, 0, -1.5, 1, -1.5, -1, 2.5, 0, 2.5, 1, 2.5);
    assert_int_equal(trek_var_size(grid, 3), 2);
    ASSERT_VALUES(trek_affine_grid(theta, trek_dims(1, 1, 2, 2), false), -0.5, -0.5, 0.5, -0.5, -0.5, 1.5, 0.5, 1.5);
    ASSERT_VALUES(trek_affine_grid(trek_cast(theta, TREK_F16), trek_dims(1, 1, 1, 1), true), 0, 0.5);
    trek_var *deep = VALUES(trek_dims(1, 3, 4), TREK_F64, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 3);
    ASSERT_VALUES(trek_affine_grid(deep, trek_dims(1, 1, 2, 1, 2), true), -1, 0, 2, -1, 0, 4, 1, 0, 2, 1, 0, 4);
    check_gradients(flat_map, 1, (trek_shape[]){ trek_dims(2, 2, 3) }, true);
    check_gradients(deep_map, 1, (trek_shape[]){ trek_dims(1, 3, 4) }, true);
    trek_var *none = values_of(trek_dims(0, 2, 3), TREK_F32, (double[]){ 0 });
    assert_int_equal(trek_var_numel(trek_affine_grid(none, trek_dims(0, 1, 2, 2), false)), 0);
    REFUSED(trek_affine_grid(theta, trek_dims(2, 1, 2, 2), false), TREK_ERR_SHAPE,
            "affine_grid: theta: [1, 2, 3], for a result of [2, 1, 2, 2]");
    REFUSED(trek_affine_grid(theta, trek_dims(1, 1, 2, 2, 2), false), TREK_ERR_SHAPE, "affine_grid: theta");
    REFUSED(trek_affine_grid(theta, trek_dims(1, 1, 0, 2), false), TREK_ERR_ARGUMENT, "affine_grid: size: ");
    REFUSED(trek_affine_grid(trek_cast(theta, TREK_I64), trek_dims(1, 1, 2, 2), false), TREK_ERR_DTYPE,
            "affine_grid: theta: dtype i64");
    assert_null(trek_affine_grid(NULL, trek_dims(1, 1, 2, 2), false));
    trek_error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(modes_and_paddings), TEST(three_dimensions), TEST(edges), TEST(gradients_of_one), TEST(grid_refused), TEST(affine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
