/* SPDX-License-Identifier: Apache-2.0 */
/* From one element's update to loops over slices, for f32 and f64.
 *
 * TREK_UPDATE_NUMBERS(name) { ... } is a function of the slice `s` (its options, corrections, step and flags) that writes at
 * most TREK_UPDATE_NUMBERS_MOST numbers `n`, and returns 0, or 1 for the second variant of the element.
 *
 * TREK_UPDATE_ELEMENT(name, states, always, variants, { ... }) is the update of one element in numbers of type T: *x is the
 * parameter, d the gradient, s[k] its states, n[k] the numbers. `kept` has bit k set if state k is kept; `always` are the bits
 * that are never missing. kept and variant are constants wherever the text is used, so that the compiler can make vectors of
 * it: choose by `? :` else, and branch on nothing but them. It gives name_update, a trek_update_fn.
 *
 * Elements of a file that is compiled with fused multiply-add differ in the last bit from those of one that is not: compile
 * by -ffp-contract=off where that matters. */
#ifndef TREK_OPTIM_UPDATE_ELEMENT_H
#define TREK_OPTIM_UPDATE_ELEMENT_H

#include <float.h>
#include <math.h>

#include "tensor/update_slice.h"

/* For elements; T is the type of the numbers. */
#define TREK_LEAST (sizeof(T) == sizeof(float) ? (T)FLT_MIN : (T)DBL_MIN) /* above 0 and not denormal */
#if !defined(__cplusplus)
#define trek_root(value) _Generic((value), float: sqrtf, default: sqrt)(value)
#define trek_magnitude(value) _Generic((value), float: fabsf, default: fabs)(value)
#elif !defined(TREK_PLUGIN)
static inline float trek_root(float value) { return sqrtf(value); }
static inline double trek_root(double value) { return sqrt(value); }
static inline float trek_magnitude(float value) { return fabsf(value); }
static inline double trek_magnitude(double value) { return fabs(value); }
#endif

/* Bytes of each array that are updated at a time, and how far ahead of them memory is asked for. The processor's own prefetching
 * stops at each page and shares its streams among the arrays: asking brings a sixth more of the memory's rate on one thread. */
#define TREK_UPDATE_BLOCK 256
#define TREK_UPDATE_AHEAD 2048

#define TREK_UPDATE_NUMBERS(name) static inline int name##_numbers(const trek_update_slice *s, double *n)

/* The function `function`, and what it consists of. */
#define TREK_UPDATE_FUNCTION(function, linkage, name, states, always, variants, ...)                              \
    TREK_UPDATE_LOOPS(name, float, f32, states, always, variants, __VA_ARGS__)                                    \
    TREK_UPDATE_LOOPS(name, double, f64, states, always, variants, __VA_ARGS__)                                   \
    linkage void function(trek_dtype dtype, const trek_update_slice *slice, int64_t begin, int64_t end)           \
    {                                                                                                             \
        if (dtype == TREK_F64)                                                                                    \
            name##_slice_f64(slice, begin, end);                                                                  \
        else                                                                                                      \
            name##_slice_f32(slice, begin, end);                                                                  \
    }

#define TREK_UPDATE_LOOPS(name, type, suffix, states, always, variants, ...)                                      \
    static inline __attribute__((always_inline)) void name##_element_##suffix(type *x, type d, type *s, const type *n, \
                                                                              unsigned kept, int variant)         \
    {                                                                                                             \
        typedef type T;                                                                                           \
        (void)s, (void)kept, (void)variant, (void)sizeof(T);                                                      \
        __VA_ARGS__                                                                                               \
    }                                                                                                             \
    static inline __attribute__((always_inline)) void name##_elements_##suffix(type *__restrict p, type *__restrict g, \
        type *__restrict a, type *__restrict b, type *__restrict c, int64_t count, type scale, const type *n, unsigned kept, \
        int variant, bool zero)                                                                                   \
    {                                                                                                             \
        for (int64_t i = 0; i < count; i++) {                                                                     \
            type x = p[i], s[TREK_UPDATE_STATES] = { kept & 1 ? a[i] : 0, kept & 2 ? b[i] : 0, kept & 4 ? c[i] : 0 }; \
            name##_element_##suffix(&x, g[i] * scale, s, n, kept, variant);                                       \
            p[i] = x;                                                                                             \
            if (kept & 1)                                                                                         \
                a[i] = s[0];                                                                                      \
            if (kept & 2)                                                                                         \
                b[i] = s[1];                                                                                      \
            if (kept & 4)                                                                                         \
                c[i] = s[2];                                                                                      \
            if (zero)                                                                                             \
                g[i] = 0;                                                                                         \
        }                                                                                                         \
    }                                                                                                             \
    static inline __attribute__((always_inline)) void name##_loop_##suffix(const trek_update_slice *slice, const type *n, \
        int64_t begin, int64_t end, unsigned kept, int variant, bool zero)                                        \
    {                                                                                                             \
        enum { BLOCK = TREK_UPDATE_BLOCK / sizeof(type) };                                                        \
        type *__restrict p = (type *)slice->param + begin, *__restrict g = (type *)slice->grad + begin;           \
        type *__restrict a = kept & 1 ? (type *)slice->state[0] + begin : NULL;                                   \
        type *__restrict b = kept & 2 ? (type *)slice->state[1] + begin : NULL;                                   \
        type *__restrict c = kept & 4 ? (type *)slice->state[2] + begin : NULL;                                   \
        const type scale = (type)slice->grad_scale;                                                               \
        int64_t at = 0;                                                                                           \
        for (; at + BLOCK <= end - begin; at += BLOCK) {                                                          \
            const void *ahead[] = { p + at, g + at, kept & 1 ? a + at : NULL, kept & 2 ? b + at : NULL,           \
                                    kept & 4 ? c + at : NULL };                                                   \
            for (int k = 0; k < 2 + TREK_UPDATE_STATES; k++)                                                      \
                for (int line = 0; line < TREK_UPDATE_BLOCK && (k < 2 || kept >> (k - 2) & 1); line += 64)        \
                    __builtin_prefetch((const char *)ahead[k] + TREK_UPDATE_AHEAD + line);                        \
            name##_elements_##suffix(p + at, g + at, kept & 1 ? a + at : NULL, kept & 2 ? b + at : NULL,          \
                                     kept & 4 ? c + at : NULL, BLOCK, scale, n, kept, variant, zero);             \
        }                                                                                                         \
        name##_elements_##suffix(p + at, g + at, kept & 1 ? a + at : NULL, kept & 2 ? b + at : NULL,              \
                                 kept & 4 ? c + at : NULL, end - begin - at, scale, n, kept, variant, zero);      \
    }                                                                                                             \
    static void name##_slice_##suffix(const trek_update_slice *slice, int64_t begin, int64_t end)                 \
    {                                                                                                             \
        double wide[TREK_UPDATE_NUMBERS_MOST] = { 0 };                                                            \
        type n[TREK_UPDATE_NUMBERS_MOST];                                                                         \
        const int variant = (variants) > 1 ? name##_numbers(slice, wide) : (name##_numbers(slice, wide), 0);      \
        const unsigned kept = slice->kept | (always);                                                             \
        for (int k = 0; k < TREK_UPDATE_NUMBERS_MOST; k++)                                                        \
            n[k] = (type)wide[k];                                                                                 \
        TREK_UPDATE_CASE(name, suffix, 0, states, always, variants)                                               \
        TREK_UPDATE_CASE(name, suffix, 1, states, always, variants)                                               \
        TREK_UPDATE_CASE(name, suffix, 2, states, always, variants)                                               \
        TREK_UPDATE_CASE(name, suffix, 3, states, always, variants)                                               \
        TREK_UPDATE_CASE(name, suffix, 4, states, always, variants)                                               \
        TREK_UPDATE_CASE(name, suffix, 5, states, always, variants)                                               \
        TREK_UPDATE_CASE(name, suffix, 6, states, always, variants)                                               \
        TREK_UPDATE_CASE(name, suffix, 7, states, always, variants)                                               \
    }

/* The loops for one set of states, where it is one that the class can have. */
#define TREK_UPDATE_CASE(name, suffix, set, states, always, variants)                                             \
    if ((set) < 1 << (states) && ((set) & (always)) == (always) && kept == (set)) {                               \
        if ((variants) > 1 && variant && slice->zero_grad)                                                        \
            name##_loop_##suffix(slice, n, begin, end, set, 1, true);                                             \
        else if ((variants) > 1 && variant)                                                                       \
            name##_loop_##suffix(slice, n, begin, end, set, 1, false);                                            \
        else if (slice->zero_grad)                                                                                \
            name##_loop_##suffix(slice, n, begin, end, set, 0, true);                                             \
        else                                                                                                      \
            name##_loop_##suffix(slice, n, begin, end, set, 0, false);                                            \
        return;                                                                                                   \
    }

#define TREK_UPDATE_ELEMENT(name, states, always, variants, ...)                                                  \
    TREK_UPDATE_FUNCTION(name##_update, static, name, states, always, variants, __VA_ARGS__)

#endif
