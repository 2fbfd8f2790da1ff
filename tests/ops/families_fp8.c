/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of 8-bit products. */
#include "tensor/fp8.h"
#include "tests/ops/suite.h"

/* limit of the record: bits of numbers up to 2; 0: no record */
static void quantise_inputs(op_case *c, const op_row *row, trek_shape shape, int64_t limit)
{
    case_input(c, row, shape);
    if (limit)
        case_typed(c, D_INDEX, TREK_I32, trek_dims(TREK_FP8_ROLES, 5), limit);
    else
        case_absent(c);
    c->in[1].plain = true;
}

FAMILY(fp8_quantise)
{
    static const int flags[] = { 0, TREK_FP8_TURNED, TREK_FP8_FROZEN | TREK_FP8_TURNED };
    const trek_shape shapes[] = { trek_dims(7, 5), trek_dims(2, 3, 16), trek_dims(4), trek_dims(0, 6), trek_dims(6, 0),
                                  trek_dims(65, 68) };
    for (int k = 0; k < 6; k++)
        for (int format = 0; format < TREK_FP8_FORMATS; format++)
            for (int record = 0; record < 2; record++) {
                op_case c = case_begin(row, record ? "past steps" : "itself");
                quantise_inputs(&c, row, shapes[k], record ? 0x40000000 : 0);
                c.attrs.i[0] = format;
                c.attrs.i[1] = record ? (k + format) % TREK_FP8_ROLES : 0;
                c.attrs.i[2] = flags[(k + record) % 3];
                c.attrs.i[3] = k % 3 - 1;
                c.large = k == 5;
                sink(row, &c, arg);
            }
    op_case c = case_begin(row, "a format of its own");
    quantise_inputs(&c, row, trek_dims(3, 4), 0);
    c.attrs.i[0] = 2;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c.attrs.i[0] = 0;
    c.attrs.i[3] = 65;
    sink(row, &c, arg);
    c = case_begin(row, "a record without that row");
    quantise_inputs(&c, row, trek_dims(3, 4), 9);
    c.attrs.i[1] = 3;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.attrs.i[1] = 0;
    c.in[1].dtype = TREK_F32;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
    c = case_begin(row, "no dimension");
    quantise_inputs(&c, row, trek_dims_none(), 0);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

/* Codes of finite numbers, positive ones; the bias is what makes results small. */
static void product_inputs(op_case *c, int64_t m, int64_t n, int64_t k, int formats, trek_dtype dtype, bool bias)
{
    c->attrs.i[0] = formats & 1;
    c->attrs.i[1] = formats >> 1;
    c->attrs.i[2] = dtype;
    case_typed(c, D_INDEX, DTYPE_ROW, trek_dims(m, k), formats & 1 ? 0x70 : 0x7f);
    case_typed(c, D_INDEX, DTYPE_ROW, trek_dims(n, k), formats >> 1 ? 0x70 : 0x7f);
    case_typed(c, D_POSITIVE, TREK_F32, trek_dims(1), 0);
    case_typed(c, D_POSITIVE, TREK_F32, trek_dims(1), 0);
    if (bias)
        case_typed(c, D_ANY, (int)dtype, trek_dims(n), 0);
    else
        case_absent(c);
}

FAMILY(fp8_product)
{
    static const int64_t sizes[][3] = { { 3, 5, 7 }, { 16, 32, 16 }, { 1, 16, 48 }, { 0, 16, 16 }, { 4, 3, 0 }, { 70, 48, 160 } };
    for (int k = 0; k < 6; k++)
        for (int formats = 0; formats < 3; formats++) { /* two of E5M2 no library multiplies, nor does training */
            op_case c = case_begin(row, formats ? "gradient" : "forward");
            product_inputs(&c, sizes[k][0], sizes[k][1], sizes[k][2], formats, (k + formats) % 2 ? TREK_F32 : TREK_BF16,
                           k % 3 != 1);
            c.large = k == 5;
            sink(row, &c, arg);
        }
    op_case c = case_begin(row, "lengths differ");
    product_inputs(&c, 3, 5, 7, 0, TREK_BF16, true);
    c.in[1].shape = trek_dims(5, 8);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.in[1].shape = trek_dims(5, 7);
    c.in[4].shape = trek_dims(3);
    sink(row, &c, arg);
    c.in[4].shape = trek_dims(5);
    c.in[4].dtype = TREK_F32;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
    c.in[4].dtype = TREK_BF16;
    c.attrs.i[2] = TREK_F16;
    sink(row, &c, arg);
}
