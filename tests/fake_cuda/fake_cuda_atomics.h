/* SPDX-License-Identifier: Apache-2.0 */
/* Atomic functions of device code. Each answers the old value. The block and
 * system forms are the same: on the host there is one scope. */
#ifndef TREK_SHIM_ATOMICS_H
#define TREK_SHIM_ATOMICS_H

/* old = *p; *p = update(old); through compare and exchange of the bits */
template <typename Bits, typename T, typename F> static inline T trek_shim_atomic(T *p, F update)
{
    static_assert(sizeof(Bits) == sizeof(T), "the bits of the value");
    Bits *bits = reinterpret_cast<Bits *>(p);
    Bits old_bits = __atomic_load_n(bits, __ATOMIC_SEQ_CST), new_bits;
    T old, next;
    do {
        memcpy(&old, &old_bits, sizeof old);
        next = update(old);
        memcpy(&new_bits, &next, sizeof next);
    } while (!__atomic_compare_exchange_n(bits, &old_bits, new_bits, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

#define TREK_SHIM_ATOMIC(name, type, bits, expression)                                                                           \
    static inline type name(type *p, type v)                                                                                     \
    {                                                                                                                            \
        return trek_shim_atomic<bits>(p, [v](type old) -> type {                                                                 \
            (void)old;                                                                                                           \
            return expression;                                                                                                   \
        });                                                                                                                      \
    }
#define TREK_SHIM_ATOMIC_SCOPES(name, type, bits, expression)                                                                    \
    TREK_SHIM_ATOMIC(name, type, bits, expression)                                                                               \
    TREK_SHIM_ATOMIC(name##_block, type, bits, expression)                                                                       \
    TREK_SHIM_ATOMIC(name##_system, type, bits, expression)

#define TREK_SHIM_ATOMIC_INTEGERS(type, bits)                                                                                    \
    TREK_SHIM_ATOMIC_SCOPES(atomicMax, type, bits, old > v ? old : v)                                                            \
    TREK_SHIM_ATOMIC_SCOPES(atomicMin, type, bits, old < v ? old : v)                                                            \
    TREK_SHIM_ATOMIC_SCOPES(atomicAnd, type, bits, old &v)                                                                       \
    TREK_SHIM_ATOMIC_SCOPES(atomicOr, type, bits, old | v)                                                                       \
    TREK_SHIM_ATOMIC_SCOPES(atomicXor, type, bits, old ^ v)

TREK_SHIM_ATOMIC_SCOPES(atomicAdd, int, unsigned, (int)((unsigned)old + (unsigned)v))
TREK_SHIM_ATOMIC_SCOPES(atomicAdd, unsigned, unsigned, old + v)
TREK_SHIM_ATOMIC_SCOPES(atomicAdd, unsigned long long, unsigned long long, old + v)
TREK_SHIM_ATOMIC_SCOPES(atomicAdd, float, unsigned, old + v)
TREK_SHIM_ATOMIC_SCOPES(atomicAdd, double, unsigned long long, old + v)
TREK_SHIM_ATOMIC_SCOPES(atomicSub, int, unsigned, (int)((unsigned)old - (unsigned)v))
TREK_SHIM_ATOMIC_SCOPES(atomicSub, unsigned, unsigned, old - v)
TREK_SHIM_ATOMIC_SCOPES(atomicExch, int, unsigned, v)
TREK_SHIM_ATOMIC_SCOPES(atomicExch, unsigned, unsigned, v)
TREK_SHIM_ATOMIC_SCOPES(atomicExch, unsigned long long, unsigned long long, v)
TREK_SHIM_ATOMIC_SCOPES(atomicExch, float, unsigned, v)
TREK_SHIM_ATOMIC_SCOPES(atomicInc, unsigned, unsigned, old >= v ? 0u : old + 1u)
TREK_SHIM_ATOMIC_INTEGERS(int, unsigned)
TREK_SHIM_ATOMIC_INTEGERS(unsigned, unsigned)
TREK_SHIM_ATOMIC_INTEGERS(unsigned long long, unsigned long long)
TREK_SHIM_ATOMIC_SCOPES(atomicMax, long long, unsigned long long, old > v ? old : v)
TREK_SHIM_ATOMIC_SCOPES(atomicMin, long long, unsigned long long, old < v ? old : v)
#undef TREK_SHIM_ATOMIC
#undef TREK_SHIM_ATOMIC_SCOPES
#undef TREK_SHIM_ATOMIC_INTEGERS

#define TREK_SHIM_CAS(name, type)                                                                                                \
    static inline type name(type *p, type compare, type value)                                                                   \
    {                                                                                                                            \
        __atomic_compare_exchange_n(p, &compare, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                              \
        return compare;                                                                                                          \
    }
#define TREK_SHIM_CAS_TYPES(name)                                                                                                \
    TREK_SHIM_CAS(name, int)                                                                                                     \
    TREK_SHIM_CAS(name, unsigned)                                                                                                \
    TREK_SHIM_CAS(name, unsigned long long)                                                                                      \
    TREK_SHIM_CAS(name, unsigned short)
TREK_SHIM_CAS_TYPES(atomicCAS)
TREK_SHIM_CAS_TYPES(atomicCAS_block)
TREK_SHIM_CAS_TYPES(atomicCAS_system)
#undef TREK_SHIM_CAS
#undef TREK_SHIM_CAS_TYPES

/* Loads and stores with cache hints. A kernel may read with __ldg only what
 * nothing writes meanwhile; TSan sees that these are plain. */
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldca(const T *p) { return *p; }
template <typename T> static inline T __ldcg(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
template <typename T> static inline T __ldlu(const T *p) { return *p; }
template <typename T> static inline T __ldcv(const T *p) { return *p; }
template <typename T> static inline void __stcg(T *p, T v) { *p = v; }
template <typename T> static inline void __stcs(T *p, T v) { *p = v; }
template <typename T> static inline void __stwb(T *p, T v) { *p = v; }
template <typename T> static inline void __stwt(T *p, T v) { *p = v; }

#endif
