/* SPDX-License-Identifier: Apache-2.0 */
/* Products by the CPU's tile instructions, where the CPU has them and the system permits their use. */
#include "tensor/cpu/products/amx.h"

#include <stdbool.h>
#include <stddef.h>

#if defined(TREK_WITH_AMX)
#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tensor/cpu/products/amx_hardware.h"

#define TILE_KERNEL_INLINE TILE_INLINE
#include "tensor/cpu/products/amx_kernel.h"

enum {
    REQUEST_PERMISSION = 0x1023, /* ARCH_REQ_XCOMP_PERM of arch_prctl */
    TILE_DATA = 18,              /* XFEATURE_XTILEDATA */
    HAS_AMX = 1 << 24 | 1 << 22, /* amx-tile and amx-bf16 in EDX of leaf 7 */
    HAS_XGETBV = 1 << 27,        /* in ECX of leaf 1 */
    TILE_STATES = 3 << 17,       /* of XCR0: the system saves configuration and tiles */
};

TILE_TARGET static void begin(void)
{
    tile_unit unit;
    const tile_config config = tile_config_whole();
    tile_configure(&unit, &config);
}

TILE_TARGET static void end(void)
{
    tile_unit unit;
    tile_release(&unit);
}

TILE_TARGET static void multiply(const trek_amx_block *block)
{
    tile_unit unit;
    __asm__ volatile("" ::: "memory"); /* the instructions do not tell the compiler what they read */
    multiply_block(&unit, block);
    __asm__ volatile("" ::: "memory");
}

static const trek_amx hardware = { begin, end, multiply };

static uint32_t saved_states(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool offered(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & HAS_XGETBV))
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & HAS_AMX) != HAS_AMX)
        return false;
    return (saved_states() & TILE_STATES) == TILE_STATES && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool permitted;

static void ask(void) { permitted = offered(); }

const trek_amx *trek_amx_hardware(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return permitted ? &hardware : NULL;
}
#else
const trek_amx *trek_amx_hardware(void) { return NULL; }
#endif
