/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the update of one element a loop over slices, for f32 and f64. trek.h does not include this header, so that <math.h> and
 * the short names below reach no other program: a file that defines a class of optimizers includes it.
 *
 * TREK_UPDATE_NUMBERS(name) { ... } is a function of the slice `s` (its options, corrections, step and flags). It writes at most
 * TREK_UPDATE_NUMBERS_MOST numbers `n`, and returns 0, or 1 for the second variant of the element.
 *
 * TREK_UPDATE_ELEMENT(name, states, always, variants, { ... }) is the update of one element in numbers of type T: *x is the
 * parameter, d the gradient, s[k] its states, n[k] the numbers. `kept` has bit k set if state k is kept, and `always` has the
 * bits that are always set. kept and variant are constants wherever the text is used, so that the compiler can vectorise it:
 * branch on nothing else, and choose by `? :`. It defines name_update, a trek_update_fn.
 *
 * Elements of a file that is compiled with fused multiply-add differ in the last bit from those of one that is not. Compile with
 * -ffp-contract=off where that matters. */
#ifndef TREK_OPTIM_UPDATE_ELEMENT_H
#define TREK_OPTIM_UPDATE_ELEMENT_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "tensor/update_slice.h"

/* The smallest number above 0 of type T that is not denormal. */
#define TREK_LEAST (sizeof(T) == sizeof(float) ? (T)FLT_MIN : (T)DBL_MIN)
#if !defined(__cplusplus)
/* Computes the square root in the type of the number. */
#define trek_root(value) _Generic((value), float: sqrtf, default: sqrt)(value)
/* Computes the absolute value in the type of the number. */
#define trek_magnitude(value) _Generic((value), float: fabsf, default: fabs)(value)
#elif !defined(TREK_PLUGIN)
/* Computes the square root in the type of the number. */
static inline float trek_root(float value) { return sqrtf(value); }
static inline double trek_root(double value) { return sqrt(value); }
/* Computes the absolute value in the type of the number. */
static inline float trek_magnitude(float value) { return fabsf(value); }
static inline double trek_magnitude(double value) { return fabs(value); }
#endif

/* Bytes of each array that are updated at a time. */
#define TREK_UPDATE_BLOCK 512

/* Bytes by which memory is prefetched ahead of the block. The processor's own prefetching stops at each page and shares its
 * streams among the arrays; prefetching in the loop raises the memory rate of one thread by a sixth. */
#define TREK_UPDATE_AHEAD 2048

/* Begins the function that computes the numbers of a slice; see above. */
#define TREK_UPDATE_NUMBERS(name) static inline int name##_numbers(const trek_update_slice *s, double *n)

/* Defines the trek_update_fn `function` and the functions that it consists of. */
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

/* The number of arrays of a slice: parameters, gradients and states. */
enum { TREK_UPDATE_ARRAYS = 2 + TREK_UPDATE_STATES };

/* A walk over the blocks of a slice. A last block that is not whole is filled up with zeros in a buffer, so that every element
 * goes through the same instructions and the code exists once. */
typedef struct trek_update_walk {
    char *base[TREK_UPDATE_ARRAYS]; /* parameters, gradients and states; NULL for arrays that the slice does not have */
    char *now[TREK_UPDATE_ARRAYS];  /* the current block of each */
    int64_t at;                     /* byte at which the current block ends */
    int64_t bytes;                  /* bytes of each array */
    bool zero;                      /* gradients are set to zero after use */
    /* A buffer for the last block of each array. */
    char buffer[TREK_UPDATE_ARRAYS][TREK_UPDATE_BLOCK] __attribute__((aligned(64)));
} trek_update_walk;

/* Prepares a walk over the elements begin .. end of a slice, of `size` bytes each. kept has the bits of the states that exist. */
static inline void trek_update_walk_begin(trek_update_walk *w, const trek_update_slice *slice, unsigned kept, int64_t begin,
                                          int64_t end, size_t size)
{
    for (int k = 0; k < TREK_UPDATE_ARRAYS; k++) {
        void *whole = k == 0 ? slice->param : k == 1 ? slice->grad : kept >> (k - 2) & 1 ? slice->state[k - 2] : NULL;
        w->base[k] = w->now[k] = whole ? (char *)whole + begin * (int64_t)size : NULL;
    }
    w->at = 0;
    w->bytes = (end - begin) * (int64_t)size;
    w->zero = slice->zero_grad;
}

/* Copies the last block, which is not whole and begins at byte `from`, into the buffer, or back out of it. */
static void trek_update_walk_last(trek_update_walk *w, int64_t from, bool back)
{
    size_t n = (size_t)(w->bytes - from);
    for (int k = 0; k < TREK_UPDATE_ARRAYS; k++) {
        if (w->base[k] && !back) {
            memset(w->buffer[k], 0, TREK_UPDATE_BLOCK);
            w->now[k] = (char *)memcpy(w->buffer[k], w->base[k] + from, n);
        } else if (w->base[k] && k != 1) {
            memcpy(w->base[k] + from, w->buffer[k], n);
        }
    }
    if (back && w->zero)
        memset(w->base[1] + from, 0, n);
}

/* Moves to the next block. Returns false if the walk is over. */
static inline bool trek_update_walk_next(trek_update_walk *w)
{
    int64_t at = w->at;
    if (at > w->bytes)
        trek_update_walk_last(w, at - TREK_UPDATE_BLOCK, true);
    w->at += TREK_UPDATE_BLOCK;
    if (w->at > w->bytes) {
        if (at < w->bytes)
            trek_update_walk_last(w, at, false);
        return at < w->bytes;
    }
    for (int k = 0; k < TREK_UPDATE_ARRAYS; k++) {
        if (!w->base[k])
            continue;
        w->now[k] = w->base[k] + at;
        for (int line = 0; line < TREK_UPDATE_BLOCK; line += 64)
            __builtin_prefetch(w->now[k] + TREK_UPDATE_AHEAD + line);
    }
    return true;
}

/* Defines the functions of an element, a block and a slice for one type. */
#define TREK_UPDATE_LOOPS(name, type, suffix, states, always, variants, ...)                                      \
    static inline __attribute__((always_inline)) void name##_element_##suffix(type *x, type d, type *s, const type *n, \
                                                                              unsigned kept, int variant)         \
    {                                                                                                             \
        typedef type T;                                                                                           \
        (void)x, (void)d, (void)s, (void)n, (void)kept, (void)variant, (void)sizeof(T);                           \
        __VA_ARGS__                                                                                               \
    }                                                                                                             \
    static inline __attribute__((always_inline)) void name##_block_##suffix(type *__restrict p, const type *__restrict g, \
        type *__restrict a, type *__restrict b, type *__restrict c, type scale, const type *__restrict n, unsigned kept, \
        int variant)                                                                                              \
    {                                                                                                             \
        for (int i = 0; i < (int)(TREK_UPDATE_BLOCK / sizeof(type)); i++) {                                       \
            type x = p[i], s[TREK_UPDATE_STATES] = { kept & 1 ? a[i] : 0, kept & 2 ? b[i] : 0, kept & 4 ? c[i] : 0 }; \
            name##_element_##suffix(&x, g[i] * scale, s, n, kept, variant);                                       \
            p[i] = x;                                                                                             \
            if (kept & 1)                                                                                         \
                a[i] = s[0];                                                                                      \
            if (kept & 2)                                                                                         \
                b[i] = s[1];                                                                                      \
            if (kept & 4)                                                                                         \
                c[i] = s[2];                                                                                      \
        }                                                                                                         \
    }                                                                                                             \
    static void name##_slice_##suffix(const trek_update_slice *slice, int64_t begin, int64_t end)                 \
    {                                                                                                             \
        double wide[TREK_UPDATE_NUMBERS_MOST] = { 0 };                                                            \
        type n[TREK_UPDATE_NUMBERS_MOST];                                                                         \
        const int variant = (variants) > 1 ? name##_numbers(slice, wide) : (name##_numbers(slice, wide), 0);      \
        for (int k = 0; k < TREK_UPDATE_NUMBERS_MOST; k++)                                                        \
            n[k] = (type)wide[k];                                                                                 \
        const unsigned kept = slice->kept | (always);                                                             \
        trek_update_walk w;                                                                                       \
        trek_update_walk_begin(&w, slice, kept, begin, end, sizeof(type));                                        \
        while (trek_update_walk_next(&w)) {                                                                       \
            type *p = (type *)w.now[0], *g = (type *)w.now[1], *a = (type *)w.now[2], *b = (type *)w.now[3],      \
                 *c = (type *)w.now[4];                                                                           \
            const type scale = (type)slice->grad_scale;                                                           \
            TREK_UPDATE_CASE(name, suffix, 0, states, always, variants)                                           \
            TREK_UPDATE_CASE(name, suffix, 1, states, always, variants)                                           \
            TREK_UPDATE_CASE(name, suffix, 2, states, always, variants)                                           \
            TREK_UPDATE_CASE(name, suffix, 3, states, always, variants)                                           \
            TREK_UPDATE_CASE(name, suffix, 4, states, always, variants)                                           \
            TREK_UPDATE_CASE(name, suffix, 5, states, always, variants)                                           \
            TREK_UPDATE_CASE(name, suffix, 6, states, always, variants)                                           \
            TREK_UPDATE_CASE(name, suffix, 7, states, always, variants)                                           \
            for (int i = 0; w.zero && i < (int)(TREK_UPDATE_BLOCK / sizeof(type)); i++) /* they are in cache */   \
                g[i] = 0;                                                                                         \
        }                                                                                                         \
    }

/* Runs the loop for one set of states, if the class can have this set. */
#define TREK_UPDATE_CASE(name, suffix, set, states, always, variants)                                             \
    if ((set) < 1 << (states) && ((set) & (always)) == (always) && kept == (set)) {                               \
        if ((variants) > 1 && variant)                                                                            \
            name##_block_##suffix(p, g, a, b, c, scale, n, set, 1);                                               \
        else                                                                                                      \
            name##_block_##suffix(p, g, a, b, c, scale, n, set, 0);                                               \
    }

/* Defines name_update from the text of an element; see above. */
#define TREK_UPDATE_ELEMENT(name, states, always, variants, ...)                                                  \
    TREK_UPDATE_FUNCTION(name##_update, static, name, states, always, variants, __VA_ARGS__)

#endif
