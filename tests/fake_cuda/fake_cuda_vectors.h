/* SPDX-License-Identifier: Apache-2.0 */
/* Vector types with CUDA's sizes and alignments, uint3 and dim3. Written out by
 * a macro because they differ in nothing but name and element. */
#ifndef TREK_SHIM_VECTORS_H
#define TREK_SHIM_VECTORS_H

#ifdef __cplusplus
#define TREK_SHIM_MAKE(...) static inline __VA_ARGS__
#else
#define TREK_SHIM_MAKE(...) static inline struct __VA_ARGS__
#endif

#define TREK_SHIM_VECTORS(name, type, align2, align4)                        \
    typedef struct name##1 {                                                 \
        type x;                                                              \
    } name##1;                                                               \
    typedef struct __attribute__((aligned(align2))) name##2 {                \
        type x, y;                                                           \
    } name##2;                                                               \
    typedef struct name##3 {                                                 \
        type x, y, z;                                                        \
    } name##3;                                                               \
    typedef struct __attribute__((aligned(align4))) name##4 {                \
        type x, y, z, w;                                                     \
    } name##4;                                                               \
    TREK_SHIM_MAKE(name##1) make_##name##1(type x)                           \
    {                                                                        \
        name##1 v = {x};                                                     \
        return v;                                                            \
    }                                                                        \
    TREK_SHIM_MAKE(name##2) make_##name##2(type x, type y)                   \
    {                                                                        \
        name##2 v = {x, y};                                                  \
        return v;                                                            \
    }                                                                        \
    TREK_SHIM_MAKE(name##3) make_##name##3(type x, type y, type z)           \
    {                                                                        \
        name##3 v = {x, y, z};                                               \
        return v;                                                            \
    }                                                                        \
    TREK_SHIM_MAKE(name##4) make_##name##4(type x, type y, type z, type w)   \
    {                                                                        \
        name##4 v = {x, y, z, w};                                            \
        return v;                                                            \
    }

TREK_SHIM_VECTORS(char, signed char, 2, 4)
TREK_SHIM_VECTORS(uchar, unsigned char, 2, 4)
TREK_SHIM_VECTORS(short, short, 4, 8)
TREK_SHIM_VECTORS(ushort, unsigned short, 4, 8)
TREK_SHIM_VECTORS(int, int, 8, 16)
TREK_SHIM_VECTORS(uint, unsigned int, 8, 16)
TREK_SHIM_VECTORS(longlong, long long, 16, 16)
TREK_SHIM_VECTORS(ulonglong, unsigned long long, 16, 16)
TREK_SHIM_VECTORS(float, float, 8, 16)
TREK_SHIM_VECTORS(double, double, 16, 16)

#undef TREK_SHIM_VECTORS
#undef TREK_SHIM_MAKE

typedef struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
#endif
} dim3;

#endif
