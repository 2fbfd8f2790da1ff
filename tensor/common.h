/* SPDX-License-Identifier: Apache-2.0 */
/* What every public header includes: visibility, C linkage, and the special values of option structs. */
#ifndef TREK_TENSOR_COMMON_H
#define TREK_TENSOR_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* TREK_API marks a function or a variable that the library exports. TREK_PRINTF(text, first) lets the compiler check a format
 * string. A plug-in (TREK_PLUGIN) has functions of the same names, which it does not export. */
#if defined(TREK_PLUGIN)
#define TREK_API
#define TREK_PRINTF(text, first) __attribute__((format(printf, text, first)))
#elif defined(__GNUC__)
#define TREK_API __attribute__((visibility("default")))
#define TREK_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define TREK_API
#define TREK_PRINTF(text, first)
#endif

/* TREK_BEGIN and TREK_END enclose the declarations of a header, which have C linkage in C++. */
#ifdef __cplusplus
#define TREK_BEGIN extern "C" {
#define TREK_END }
#else
#define TREK_BEGIN
#define TREK_END
#endif

/* In a field of an option struct, TREK_OFF turns a feature off. A field that is 0 has its documented default. Arguments of
 * functions have no such special values. */
#define TREK_OFF (-1)
/* In a field of an option struct whose default is not 0, TREK_ZERO stands for the number 0: { .lr = TREK_ZERO }. This holds for
 * every such field, whether its comment says so or not. Where 0 is not allowed, TREK_ZERO is refused, as is any other number that
 * is not. Every type of field can hold it exactly. */
#define TREK_ZERO (-2147483647 - 1)

/* Returns what such a field has to hold to mean `number`, which may be 0, for example if it was computed:
 * { .lr = trek_number(lr) }. */
static inline double trek_number(double number)
{
    return number == 0 ? TREK_ZERO : number;
}

#endif
