/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU kernels have in common. Kernel files are compiled once for each instruction set (TREK_ISA names it);
 * every symbol that is not static contains the set's name, so that the copies can be in one library. */
#ifndef TREK_TENSOR_CPU_KERNELS_H
#define TREK_TENSOR_CPU_KERNELS_H

#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "tensor/backend.h"
#include "tensor/half_internal.h"
#include "tensor/pool.h"

#ifndef TREK_ISA
#define TREK_ISA baseline
#endif
#define TREK_ISA_JOIN_(x, isa) x##_##isa
#define TREK_ISA_JOIN(x, isa) TREK_ISA_JOIN_(x, isa)
#define TREK_ISA_NAME(x) TREK_ISA_JOIN(x, TREK_ISA)

/* Every kernel file: it exports TREK_ISA_NAME(trek_cpu_register_<file>)(backend). */
#define TREK_KERNEL_FILES(X)                                                   \
    X(unary)                                                                   \
    X(pointwise)                                                                \
    X(binary)                                                                  \
    X(fused)                                                                   \
    X(division)                                                                \
    X(bitwise)                                                                 \
    X(logcumsumexp)                                                            \
    X(compare)                                                                 \
    X(copy)                                                                    \
    X(reduce)                                                                  \
    X(reduce_argument)                                                         \
    X(softmax)                                                                 \
    X(arrange)                                                                 \
    X(index)                                                                   \
    X(random)                                                                  \
    X(arena)                                                                   \
    X(binned)                                                                  \
    X(binned_products)                                                         \
    X(digest)                                                                  \
    X(state)                                                                   \
    X(matmul)                                                                  \
    X(fp8)                                                                     \
    X(conv2d)                                                                  \
    X(pool2d)                                                                  \
    X(resample)                                                                \
    X(grid_sample)                                                             \
    X(layer_norm)                                                              \
    X(rms_norm)                                                                \
    X(attention)                                                               \
    X(batch_norm)                                                              \
    X(embedding)                                                               \
    X(embedding_bag)                                                           \
    X(rotary)                                                                  \
    X(cross_entropy)                                                           \
    X(pointwise_loss)                                                          \
    X(linear_cross_entropy)                                                    \
    X(lstm)                                                                    \
    X(gru)
#define TREK_KERNEL_DECLARE(file) void TREK_ISA_NAME(trek_cpu_register_##file)(trek_backend *b);
TREK_KERNEL_FILES(TREK_KERNEL_DECLARE)
#undef TREK_KERNEL_DECLARE

/* Files that are compiled once, not per instruction set: each exports trek_cpu_register_<file>(backend). */
#define TREK_KERNEL_FILES_ONCE(X)                                              \
    X(special)                                                                 \
    X(sort)                                                                    \
    X(cumulative)                                                              \
    X(search)                                                                  \
    X(scatter)                                                                 \
    X(nonzero)
#define TREK_KERNEL_DECLARE(file) void trek_cpu_register_##file(trek_backend *b);
TREK_KERNEL_FILES_ONCE(TREK_KERNEL_DECLARE)
#undef TREK_KERNEL_DECLARE

/* For loops in which element i of the output depends only on element i of the inputs, so that they can work in place:
 * tells the compiler so. */
#if defined(__clang__)
#define TREK_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TREK_INDEPENDENT _Pragma("GCC ivdep")
#endif

#endif
