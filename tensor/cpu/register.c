/* SPDX-License-Identifier: Apache-2.0 */
/* Registers one instruction set: fills the table with the kernels of every file. */
#include "tensor/cpu/kernels.h"

void TREK_ISA_NAME(trek_cpu_kernels)(trek_backend *b);

void TREK_ISA_NAME(trek_cpu_kernels)(trek_backend *b)
{
#define TREK_KERNEL_REGISTER(file) TREK_ISA_NAME(trek_cpu_register_##file)(b);
#define TREK_KERNEL_REGISTER_ONCE(file) trek_cpu_register_##file(b);
    TREK_KERNEL_FILES(TREK_KERNEL_REGISTER)
    TREK_KERNEL_FILES_ONCE(TREK_KERNEL_REGISTER_ONCE)
#undef TREK_KERNEL_REGISTER
#undef TREK_KERNEL_REGISTER_ONCE
}
