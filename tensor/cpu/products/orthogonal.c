/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/products/orthogonal.h"

#include <math.h>
#include <string.h>

#include "tensor/cpu/products/factors.h"
#include "tensor/memory_internal.h"

enum {
    BLOCK = 64,      /* reflections that are applied together */
    NARROW = 32,     /* columns of a panel whose products with the matrix are made one by one */
    FEW_VALUES = 25, /* of a matrix that is not divided */
};

#define JOIN_(name, real) name##_##real
#define JOIN(name, real) JOIN_(name, real)
#define R(name) JOIN(name, TREK_REAL)

#define TREK_REAL f32
#define REAL float
#define DTYPE TREK_F32
#include "tensor/cpu/products/reflectors_template.h"
#include "tensor/cpu/products/symmetric_template.h"
#include "tensor/cpu/products/singular_template.h"
#undef TREK_REAL
#undef REAL
#undef DTYPE
#define TREK_REAL f64
#define REAL double
#define DTYPE TREK_F64
#include "tensor/cpu/products/reflectors_template.h"
#include "tensor/cpu/products/symmetric_template.h"
#include "tensor/cpu/products/singular_template.h"

int trek_orthogonal_qr(trek_dtype dtype, int64_t m, int64_t n, void *a, void *r)
{
    return dtype == TREK_F64 ? qr_f64(m, n, a, r) : qr_f32(m, n, a, r);
}

int trek_orthogonal_eigh(const trek_orthogonal_routines *routines, trek_dtype dtype, int64_t n, bool vectors, void *a,
                         void *values)
{
    return dtype == TREK_F64 ? eigh_f64(routines, n, vectors, a, values) : eigh_f32(routines, n, vectors, a, values);
}

int trek_orthogonal_svd(const trek_orthogonal_routines *routines, trek_dtype dtype, int64_t m, int64_t n, void *a, void *u,
                        void *s,
                        void *vh)
{
    return dtype == TREK_F64 ? svd_f64(routines, m, n, a, u, s, vh) : svd_f32(routines, m, n, a, u, s, vh);
}
