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

/* Options are structs in which 0, which is what a field holds that is left out, stands for the documented default. What cannot be
 * said with 0 is said in one of three ways. Arguments of functions have no such special values.
 *   - A switch (bool) whose default is off has the name of the feature: { .causal = true }. If the default is on, the switch is
 *     called no_ and the name: { .no_bias = true }.
 *   - TREK_OFF turns off a feature that a number controls and whose default is on: { .max_grad_norm = TREK_OFF }. The comment of
 *     the field says what is off then.
 *   - TREK_ZERO is the number 0 in a field whose default is another number: { .lr = TREK_ZERO }.
 *
 * TREK_OFF is never the number 0, and TREK_ZERO never turns a feature off unless the number 0 does. */
#define TREK_OFF (-1)
/* The number 0 in a field of an option struct. This holds for every field whose default is not 0, whether its comment says so or
 * not, and for fields in a fixed range whose default is 0, so that trek_number can be used for both. Where 0 is not allowed,
 * TREK_ZERO is refused, as is any other number that is not. Every type of field can hold it exactly. */
#define TREK_ZERO (-2147483647 - 1)

/* Returns what such a field has to hold to mean `number`, which may be 0, for example if it was computed:
 * { .lr = trek_number(lr) }. */
static inline double trek_number(double number)
{
    return number == 0 ? TREK_ZERO : number;
}

#endif
