/* SPDX-License-Identifier: Apache-2.0 */
/* Which function writes each row. */
#include "onnx/onnx_internal.h"

trek_onnx_row trek_onnx_row_of(int op)
{
    trek_onnx_row rows[TREK_ONNX_ROWS] = { NULL };
    trek_onnx_rows_elementwise(rows);
    trek_onnx_rows_reduce(rows);
    trek_onnx_rows_shape(rows);
    trek_onnx_rows_nn(rows);
    trek_onnx_rows_products(rows);
    trek_onnx_rows_recurrent(rows);
    trek_onnx_rows_compound(rows);
    return rows[op];
}
