/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN's primitives, made once for each geometry. Private to onednn.c and onednn_entry.c, which alone call oneDNN (2.x). */
#ifndef TREK_TENSOR_CPU_PRODUCTS_ONEDNN_ENTRY_H
#define TREK_TENSOR_CPU_PRODUCTS_ONEDNN_ENTRY_H

#include "tensor/cpu/products/onednn.h"

#ifdef TREK_ONEDNN_CONV

#include <oneapi/dnnl/dnnl.h>

/* An array in plain layout, in the layout that the primitive wants, and the way between them (NULL: the same). */
typedef struct conv_side {
    dnnl_memory_desc_t plain, wanted;
    dnnl_primitive_t reorder;
} conv_side;

enum { SIDE_FIRST, SIDE_SECOND, SIDE_RESULT, SIDES };

/* A primitive for one pass and geometry. Never changes once it is in the table; lives as long as the process. */
typedef struct conv_entry {
    trek_conv key;
    int64_t y_filters;   /* those of y as it lies in memory: more than the key's for a slice of the filters */
    trek_onednn_pass pass;
    bool bias, winograd, last, usable; /* last: x and y lie channels last in memory */
    dnnl_primitive_t primitive;
    conv_side side[SIDES];
    dnnl_memory_desc_t bias_desc, scratch;
} conv_entry;

extern dnnl_engine_t trek_onednn_engine; /* of the CPU; made with the first entry */

/* The entry like `wanted`, of which key, y_filters, pass, bias, winograd and last are given; made at first need. NULL if oneDNN
 * cannot. */
const conv_entry *trek_onednn_entry(const conv_entry *wanted);

#endif
#endif
