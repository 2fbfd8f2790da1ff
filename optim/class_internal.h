/* SPDX-License-Identifier: Apache-2.0 */
/* The header that the file of each of the library's optimizer classes includes. Such a file is compiled several
 * times: as the class itself (TREK_OPTIMIZER_HOME), once for each instruction set of the CPU (TREK_ISA), and for GPUs
 * (TREK_PLUGIN). TREK_UPDATE_ELEMENT expands to what each of these needs. meson.build lists the files. */
#ifndef TREK_OPTIM_CLASS_INTERNAL_H
#define TREK_OPTIM_CLASS_INTERNAL_H

#if defined(TREK_PLUGIN)
/* tensor/cuda/optim/update_apply.cuh is included before and defines what an element is there */
#include "optim/update_element.h"
#undef TREK_UPDATE_NUMBERS
#undef TREK_UPDATE_ELEMENT
#define TREK_UPDATE_NUMBERS(name) TREK_GPU_NUMBERS(name)
#define TREK_UPDATE_ELEMENT(name, states, always, variants, ...) TREK_GPU_ELEMENT(name, states, always, __VA_ARGS__)
#elif defined(TREK_ISA)
#include "optim/update_element.h"
#undef TREK_UPDATE_ELEMENT
#define TREK_UPDATE_ISA_NAME_(name, isa) trek_##name##_update_##isa
#define TREK_UPDATE_ISA_NAME(name, isa) TREK_UPDATE_ISA_NAME_(name, isa)
#define TREK_UPDATE_ELEMENT(name, states, always, variants, ...)                                                  \
    void TREK_UPDATE_ISA_NAME(name, TREK_ISA)(trek_dtype dtype, const trek_update_slice *slice, int64_t begin, int64_t end); \
    TREK_UPDATE_FUNCTION(TREK_UPDATE_ISA_NAME(name, TREK_ISA), , name, states, always, variants, __VA_ARGS__)
#else
#define TREK_OPTIMIZER_HOME
#include "optim/optimizer_class.h"
#include "optim/update_element.h"
#include "tensor/backend.h"
#undef TREK_UPDATE_ELEMENT
#if defined(TREK_WITH_AVX2)
#define TREK_UPDATE_AVX2(name) trek_##name##_update_avx2
#else
#define TREK_UPDATE_AVX2(name) trek_##name##_update_baseline
#endif
#if defined(TREK_WITH_AVX512)
#define TREK_UPDATE_AVX512(name) trek_##name##_update_avx512
#else
#define TREK_UPDATE_AVX512(name) trek_##name##_update_baseline
#endif
/* The numbers are computed where the elements are. */
#define TREK_UPDATE_ELEMENT(name, states, always, variants, ...)                                                  \
    void trek_##name##_update_baseline(trek_dtype dtype, const trek_update_slice *slice, int64_t begin, int64_t end); \
    void TREK_UPDATE_AVX2(name)(trek_dtype dtype, const trek_update_slice *slice, int64_t begin, int64_t end);    \
    void TREK_UPDATE_AVX512(name)(trek_dtype dtype, const trek_update_slice *slice, int64_t begin, int64_t end);  \
    static void name##_update(trek_dtype dtype, const trek_update_slice *slice, int64_t begin, int64_t end)       \
    {                                                                                                             \
        static const trek_update_fn updates[] = { trek_##name##_update_baseline, TREK_UPDATE_AVX2(name),          \
                                                  TREK_UPDATE_AVX512(name) };                                     \
        (void)name##_numbers;                                                                                     \
        updates[trek_cpu_backend()->isa](dtype, slice, begin, end);                                               \
    }
#endif

#endif
