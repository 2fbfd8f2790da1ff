/* SPDX-License-Identifier: Apache-2.0 */
/* Finds an op's row. */
#include "onnx/onnx_internal.h"

static const trek_onnx_row *const tables[] = {
    trek_onnx_rows_elementwise, trek_onnx_rows_reduce, trek_onnx_rows_shape, trek_onnx_rows_nn,
    trek_onnx_rows_products, trek_onnx_rows_recurrent, trek_onnx_rows_compound,
};

const trek_onnx_row *trek_onnx_row_of(int op)
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const trek_onnx_row *row = tables[t]; row->write; row++)
            if (row->op == op)
                return row;
    return NULL;
}
